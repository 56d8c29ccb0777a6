#ifndef STAGECOACH_ENGINE_CHECKPOINT_SHARD_FILES_H_
#define STAGECOACH_ENGINE_CHECKPOINT_SHARD_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/stage/optimizer.h"
#include "engine/runtime/stage/trained_piece.h"

namespace stagecoach::engine {

// The files in which a checkpoint keeps what is trained, in the format of safetensors: for each
// layer that has parameters other than copies (ModelParameter::is_copy), one of their values, such
// as "layer-00003.safetensors", and one of the optimizer's states,
// "layer-00003.optimizer.safetensors". If parameters have averages (Optimizer::has_ema), these are
// the values, so that all that does not train uses them; the parameters that training continues
// from are with the states, as "layer 3: weight.raw". Frozen parameters are in one of their own,
// "layer-00003.frozen.safetensors", which checkpoints of a run can share. Names, places and bytes
// depend on the model and the optimizer alone, so every plan writes the same files.

// One tensor in such a file: float32, or a quantized matrix as uint8.
struct ShardTensor {
  std::string name;  // the parameter's; for a state, "layer 3: weight.exp_avg"
  ParameterId parameter;
  int state = kTrainedValue;
  Shape shape;  // of its values
  std::optional<kernels::QuantizedMatrix> quantized = {};
  int64_t begin = 0;  // in the file, in bytes

  // Returns the form in which it is in the file, without data.
  Tensor stored() const { return StoredForm(shape, quantized, kernels::DType::kFloat32); }
  int64_t bytes() const { return stored().bytes(); }
};

struct ShardFile {
  std::string name;
  int layer = 0;
  bool is_frozen = false;  // has the values of frozen parameters, and no others
  std::string header;      // beginning of the file
  std::vector<ShardTensor> tensors;

  int64_t bytes() const { return tensors.back().begin + tensors.back().bytes(); }
};

// Returns the files in the order of layers, values before states, and frozen values last.
// InvalidArgument: two parameters have one name, or a name is not UTF-8.
absl::StatusOr<std::vector<ShardFile>> ShardFilesOf(const ParameterTable& parameters,
                                                    const Optimizer& optimizer);

// Interpret a file's name: whether it holds the optimizer's states; its layer, -1 if it is of none.
bool IsOptimizerFile(absl::string_view name);
int LayerOfFile(absl::string_view name);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_SHARD_FILES_H_
