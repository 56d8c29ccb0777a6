#ifndef STAGECOACH_ENGINE_MODELS_HUGGING_FACE_H_
#define STAGECOACH_ENGINE_MODELS_HUGGING_FACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/models/hugging_face_model.h"
#include "engine/models/transformer.h"

namespace stagecoach::engine {

// Describes and names models as the library transformers (Wolf et al. 2020) does; each file of
// families/ has the ones of an architecture. A folder of one has a config.json, and the
// parameters in model.safetensors, or in several such files, which model.safetensors.index.json
// lists. torchvision names ResNets differently, and has nothing like config.json.

// Returns the model that a config.json describes. InvalidArgument names the key that asks for
// something unsupported: another architecture, activation, scaling of rotary positions, biases in
// Llama; and any unknown key, unless its value is null. Keys that are known to have no part in what
// a model computes are not read (base/text/hugging_face_keys.h). Of quantized models, those in NF4
// and int8 by bitsandbytes are read.
absl::StatusOr<HuggingFaceModel> ReadHuggingFaceModel(absl::string_view json);
// Does the same for a model of tokens: InvalidArgument for another.
absl::StatusOr<Transformer> ReadHuggingFaceConfig(absl::string_view json);
// Reads a generation_config.json: the tokens that end and begin texts, if it names them. Everything
// else in it is about how a text is continued.
absl::Status ReadHuggingFaceGeneration(absl::string_view json, Transformer& model);
std::string HuggingFaceConfigOf(const HuggingFaceModel& model);
// Returns the dropout that a config.json asks for in training, which a Transformer does not have:
// "resid_pdrop 0.1, attn_pdrop 0.1"; "" if there is none. A key that GPT-2 leaves out is 0.1, as in
// transformers. InvalidArgument: one is not a number.
absl::StatusOr<std::string> HuggingFaceDropoutOf(absl::string_view json);

// Maps the values of one of our parameters to theirs: in one tensor, or side by side along the last
// axis in several. A convolution's weights, (outputs, inputs, height, width) in both, are a matrix
// with a row for each output.
struct HuggingFacePiece {
  std::string tensor;          // "h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // theirs: of any rank, but 2 if transposed
  bool is_transposed = false;  // theirs is (columns, rows) of ours
  // The first and the number of rows in theirs; 0: all. Those behind them are the next parameter's.
  int64_t first_row = 0;
  int64_t some_rows = 0;
  // For each output of a linear layer in theirs, its column in ours; none: in the same order.
  std::vector<int64_t> order = {};
  float offset = 0.0F;  // ours is theirs and this, rounded as a float32: of vectors alone

  // Rows and columns in ours.
  int64_t rows() const {
    if (some_rows > 0) return some_rows;
    if (shape.size() < 2) return 1;
    return is_transposed ? shape[1] : shape[0];
  }
  int64_t columns() const {
    if (is_transposed || shape.size() < 2) return shape[0];
    int64_t product = 1;
    for (size_t axis = 1; axis < shape.size(); ++axis) product *= shape[axis];
    return product;
  }
  int64_t ColumnOf(int64_t output) const {
    return order.empty() ? output : order[static_cast<size_t>(output)];
  }
  // Returns the end of the outputs from `first` on whose columns in ours are side by side.
  int64_t EndOfRun(int64_t first) const {
    int64_t end = first + 1;
    while (end < columns() && ColumnOf(end) == ColumnOf(end - 1) + 1) ++end;
    return end;
  }
};
struct HuggingFaceParameter {
  std::string name;  // ours: "layer 1: 1.weight"
  std::vector<HuggingFacePiece> pieces;

  int64_t columns() const {
    int64_t sum = 0;
    for (const HuggingFacePiece& piece : pieces) sum += piece.columns();
    return sum;
  }
};

// Returns the mapping of all parameters of a model that is made from ModelFileOf(model), except for
// a tied head, in order.
std::vector<HuggingFaceParameter> HuggingFaceParametersOf(const HuggingFaceModel& model);
// Returns the counters of batches that each norm's averages have seen, by their tensors of one
// int64. Only PyTorch without a momentum computes with them, and these models have one: they are
// written, for users who ask for all tensors of a state dict, but not read.
std::vector<std::string> HuggingFaceCountersOf(const HuggingFaceModel& model);
// Returns the optional prefix of every tensor's name in a file: "transformer.", "model.", "resnet."
// or nothing.
std::string HuggingFacePrefix(const HuggingFaceModel& model);
// Returns the whole name of a tensor: with the prefix, except for a head, which never has it.
std::string HuggingFaceTensorName(const HuggingFaceModel& model, absl::string_view tensor);
// Returns the tensor of the embedding's table, without the prefix.
std::string HuggingFaceTokenTable(const Transformer& model);
// Returns the tensor of the head's weight, which a tied model does not need.
std::string HuggingFaceHead(const Transformer& model);
// Returns whether a tensor is none of the parameters, but may be ignored: masks that old files
// keep, counters, and the head's weight if it is tied.
bool IsHuggingFaceBuffer(const HuggingFaceModel& model, absl::string_view tensor);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_HUGGING_FACE_H_
