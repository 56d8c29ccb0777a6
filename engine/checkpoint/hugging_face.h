#ifndef STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_H_
#define STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/hugging_face_model.h"
#include "engine/model/transformer.h"

namespace stagecoach::engine {

// How the library transformers (Wolf et al. 2020) describes and names models: GPT2LMHeadModel,
// LlamaForCausalLM and ResNetForImageClassification. A folder of it has a config.json, and the
// parameters in model.safetensors, or in several such files, which model.safetensors.index.json
// lists. torchvision names ResNets otherwise, and has nothing like config.json.

// The model that a config.json is of. InvalidArgument says which key asks for what is not there:
// another architecture, activation, scaled rotary embedding, biases in Llama; and any key that is
// not known, unless its value is null. Keys that are known to have no part in what a model computes
// are not read (hugging_face_keys.h).
absl::StatusOr<HuggingFaceModel> ReadHuggingFaceModel(absl::string_view json);
// Likewise, of a model of tokens: InvalidArgument for another.
absl::StatusOr<Transformer> ReadHuggingFaceConfig(absl::string_view json);
// Reads a generation_config.json: the tokens that end and begin texts, where it says so. What else
// is in it is how a text is continued.
absl::Status ReadHuggingFaceGeneration(absl::string_view json, Transformer& model);
std::string HuggingFaceConfigOf(const HuggingFaceModel& model);
// The dropout that a config.json asks for in training, which a Transformer has none of:
// "resid_pdrop 0.1, attn_pdrop 0.1"; "" if there is none. A key that GPT-2 leaves out is 0.1, as
// transformers has it. InvalidArgument: one is not a number.
absl::StatusOr<std::string> HuggingFaceDropoutOf(absl::string_view json);

// Where the values of a parameter of ours are in theirs: in one tensor, or side by side along the
// last axis in several. A convolution's weights, (outputs, inputs, height, width) in both, are a
// matrix with a row for each output.
struct HuggingFacePiece {
  std::string tensor;          // "h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // theirs: of any rank but a transposed one's, 2
  bool is_transposed = false;  // theirs is (columns, rows) of ours
  // Of theirs, the rows from the one on, so many; 0: all. Those behind them are the next
  // parameter's.
  int64_t first_row = 0;
  int64_t some_rows = 0;

  // Of ours.
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

// Of all parameters of a model that is made from ModelFileOf(model), but for a tied head, in order.
std::vector<HuggingFaceParameter> HuggingFaceParametersOf(const HuggingFaceModel& model);
// How many batches each norm's averages have seen, by its tensor of one int64. Only PyTorch without
// a momentum computes with it, and these models have one: it is written, for those who ask for all
// tensors of a state dict, but not read.
std::vector<std::string> HuggingFaceCountersOf(const HuggingFaceModel& model);
// What stands before the name of each tensor in a file where it does: "transformer.", "model.",
// "resnet." or nothing.
std::string HuggingFacePrefix(const HuggingFaceModel& model);
// The whole name of a tensor: with the prefix, but for a head, which never has it.
std::string HuggingFaceTensorName(const HuggingFaceModel& model, absl::string_view tensor);
// Whether a tensor is none of the parameters, but may be left out: masks that old files keep,
// counters, and the head's weight where it is tied.
bool IsHuggingFaceBuffer(const HuggingFaceModel& model, absl::string_view tensor);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_H_
