#ifndef STAGECOACH_ENGINE_MODELS_MODEL_FILE_H_
#define STAGECOACH_ENGINE_MODELS_MODEL_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/sample_spec.h"
#include "engine/models/model.h"
#include "engine/nn/parsing/lora.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::engine {

// Reads a model from TOML: a list of layers, in order, and a loss.
//
//   loss = "softmax_cross_entropy"      # the default; or "mean_squared_error", which is that of
//                                       # data whose labels are numbers
//   context = 1024                      # for a model of tokens: the number of tokens in a sample,
//   vocabulary = 50257                  # and the vocabulary size, for callers that load its data
//                                       # by ParseModelTokens; the model itself takes its data's
//   end_of_text = [50256]               # tokens that each end a text, and one that begins it, for
//   begin_of_text = 50256               # callers that generate texts
//
//   input = [3, 32, 32]                 # the shape of a sample, with as many numbers as the data
//                                       # has; or "image": that of the data's images or, if the
//                                       # data does not say it, a square one of 1 or 3 channels.
//                                       # Default: all numbers in one row; for ids, the data's
//
//   [[layer]]
//   type = "linear"                     # engine/nn/layers/linear.h
//   outputs = 512                       # a number, or "classes": as many as the data has, 1 if
//                                       # the labels are numbers
//   activation = "relu"                 # "none" (the default), "relu", "gelu", "gelu_exact",
//                                       # "tanh" or "sigmoid" (kernels/activation.h)
//   bias = true                         # the default
//   deviation = 0.02                    # of normal weights; default: linear.h's uniform ones
//
//   [[layer]]
//   type = "residual"                   # engine/nn/layers/composite/residual.h
//   layers = [{ type = "layer_norm" },  # engine/nn/layers/layer_norm.h; epsilon = 1e-5
//             { type = "linear", outputs = 512, activation = "gelu" }]
//   repeat = 4                          # four such layers in a row; any layer may have this
//
//   [[layer]]
//   type = "linear"
//   outputs = "classes"
//
//   [lora]                              # all parameters are frozen, and linear layers get adapters
//   rank = 16                           # (engine/nn/parsing/lora.h)
//   alpha = 32                          # default: twice the rank
//   dropout = 0.05                      # default: 0
//   rslora = false                      # the default
//   targets = ["q_proj", "v_proj"]      # default: all linear layers
//   train = ["embedding", "head"]       # layers that are trained as a whole, also "norms";
//                                       # default: none
//
//   [quantization]                      # all parameters are frozen, except for adapters, and the
//   type = "nf4"                        # weights of linear layers are stored so: "nf4",
//                                       # "nf4-single" or "int8" (kernels/quantized_matrix.h)
//
//
//   [tensor]                            # the linear layers inside residual ones are cut into as
//   blocks = 4                          # many blocks, which devices can share
//                                       # (engine/nn/layers/composite/tensor_blocks.h)
//
// engine/nn/layers/layers.h has all types with their keys and defaults.

// Limits, on the layers of a file after repetition, including those inside residual layers.
inline constexpr int64_t kMaxModelFileBytes = 1'000'000;
inline constexpr int64_t kMaxFileLayers = 10'000;

// The data that a model is made for.
struct ModelData {
  Shape input;             // of one sample
  int64_t vocabulary = 0;  // of its ids; 0: it has numbers
  int64_t classes = 1;     // of its labels; for labels that are numbers: how many a sample has
  bool has_numbers = false;

  static ModelData Of(const SampleSpec& spec);
  static ModelData Features(int64_t features, int64_t classes) {
    return {.input = Shape{features}, .classes = classes};
  }
};

// Returns the model that `toml` describes, for such data. The last layer must have as many outputs
// as there are classes, at each position if there are several, or numbers to predict. AnalyzeModel
// checks whether layers fit together. Pre-condition: numbers of elements and classes are at least
// 1.
//
// InvalidArgument otherwise: says where ("line 9: $.layer[1].activation", counting from layer 0),
// and suggests the nearest name for an unknown one. ResourceExhausted if the text exceeds the
// limits of base::ParseToml.
absl::StatusOr<Model> ParseModel(absl::string_view toml, const ModelData& data);
// Does the same for samples of `features` numbers.
absl::StatusOr<Model> ParseModel(absl::string_view toml, int64_t features, int64_t classes);

// The tokens that the model of `toml` is for, as far as `toml` says; 0 otherwise. Errors: those of
// ParseModel in the keys read.
struct ModelTokens {
  int64_t context = 0;
  int64_t vocabulary = 0;
  std::vector<int64_t> end_of_text;
  std::optional<int64_t> begin_of_text;
};
absl::StatusOr<ModelTokens> ParseModelTokens(absl::string_view toml);
// Returns the shape that the model of `toml` takes, such as that of input = [3, 32, 32]; [] if
// `toml` does not say it, or says that it is the data's. ParseModel checks whether it is well
// formed.
Shape ParseModelInput(absl::string_view toml);

// Returns the adapters that a model of `toml` gets; nothing if it has no table [lora]. Errors:
// those of ParseModel in that table.
absl::StatusOr<std::optional<LoraOptions>> LoraOf(absl::string_view toml);
// Returns how a model of `toml` stores its weights; nothing if it has no table [quantization].
// Errors: those of ParseModel in that table.
absl::StatusOr<std::optional<kernels::Quantization>> QuantizationOf(absl::string_view toml);
// Returns that table, with its heading.
std::string QuantizationTableOf(kernels::Quantization quantization);
// Returns the blocks of a table [tensor]; 1 if there is none. Errors: those of ParseModel in that
// table.
absl::StatusOr<int64_t> TensorBlocksOf(absl::string_view toml);
// Returns that table, with its heading.
std::string TensorTableOf(int64_t blocks);
// Returns whether the model of `toml` can have these adapters. InvalidArgument: it is of images, or
// CheckLoraLayers. Errors of base::ParseToml.
absl::Status CheckCanAdapt(absl::string_view toml, const LoraOptions& lora);
// Does the same for a table [quantization]. InvalidArgument: it is of images, or has no linear
// layers.
absl::Status CheckCanQuantize(absl::string_view toml);

// Does the same for a file of at most kMaxModelFileBytes; errors name it. Also the errors of
// base::ReadFile.
absl::StatusOr<Model> ReadModelFile(const std::string& path, int64_t features, int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_MODEL_FILE_H_
