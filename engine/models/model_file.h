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
//   type = "residual"                   # engine/nn/layers/residual.h
//   layers = [{ type = "layer_norm" },  # engine/nn/layers/layer_norm.h; epsilon = 1e-5
//             { type = "linear", outputs = 512, activation = "gelu" }]
//   repeat = 4                          # four such layers in a row; any layer may have this
//
//   [[layer]]
//   type = "linear"
//   outputs = "classes"
//
// The other types, with their defaults:
//
//   { type = "embedding", vocabulary = 50257, features = 768, positions = false,
//     token_deviation = 0.02, position_deviation = 0.02 }   # layers/embedding.h; a vocabulary may
//                                                           # be "classes"; positions true, or as
//                                                           # many as its table has
//   { type = "sequence", layers = [...] }                   # these, one after the other, between
//                                                           # which a cut may fall: to be repeated
//   { type = "attention", heads = 12, kv_heads = 12, rotary_base = 0,
//     rotary_scaling = { factor = 8.0, original_context = 8192, low_turns = 1.0, high_turns = 4.0 }
//     }
//                                                           # layers/attention.h; heads has no
//                                                           # default, kv_heads is as heads;
//                                                           without # a scaling there is none
//   { type = "rms_norm", epsilon = 1e-5 }                   # layers/layer_norm.h
//   { type = "swiglu" }                                     # layers/swiglu.h
//   { type = "dropout", rate = 0.1 }                        # layers/dropout.h; no default
//   { type = "head", deviation = 0.02, tied = false }       # layers/head.h; the last layer, in
//                                                           # place of linear and its loss; tied:
//                                                           # to the table of layer 0, an embedding
//   { type = "relu" }                                       # layers/activation.h: any of the
//                                                           # activations, as a layer of its own
//   { type = "residual", layers = [...], shortcut = [...], relu = false }  # a shortcut through
//                                                           # layers of its own, relu of the sum
//
//   { type = "add_skip", from = "down" }                    # layers/skip.h: output of the layer
//   { type = "concat_skip", from = "down" }                 # before that has name = "down" (any
//                                                           # may; the last of a repeated one)
//
// and those of images [channels, height, width]:
//
//   { type = "conv2d", outputs = 64, kernel = 3, stride = 1, padding = 0, groups = 1, bias = true }
//                                                           # layers/conv2d.h; outputs and kernel
//                                                           # have no default
//   { type = "max_pool", kernel = 2, stride = 2, padding = 0 }   # layers/pooling.h; the stride is
//   { type = "avg_pool", kernel = 2, stride = 2, padding = 0 }   # the kernel by default
//   { type = "global_avg_pool" }
//   { type = "group_norm", groups = 32, epsilon = 1e-5 }    # layers/image_norm.h; groups has no
//   { type = "batch_norm", momentum = 0.1, epsilon = 1e-5 } # default
//   { type = "flatten" }                                    # layers/flatten.h

// Limits, on the layers of a file after repetition, including those inside residual layers.
inline constexpr int64_t kMaxModelFileBytes = 1'000'000;
inline constexpr int64_t kMaxFileLayers = 10'000;
inline constexpr int64_t kMaxFileOutputs = int64_t{1} << 20;

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

// Does the same for a file of at most kMaxModelFileBytes; errors name it. Also the errors of
// base::ReadFile.
absl::StatusOr<Model> ReadModelFile(const std::string& path, int64_t features, int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_MODEL_FILE_H_
