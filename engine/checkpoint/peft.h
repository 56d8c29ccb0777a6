#ifndef STAGECOACH_ENGINE_CHECKPOINT_PEFT_H_
#define STAGECOACH_ENGINE_CHECKPOINT_PEFT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/transformer.h"
#include "engine/nn/parameter_table.h"
#include "engine/nn/parsing/lora.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Adapters as the library PEFT saves them: a folder with adapter_config.json and
// adapter_model.safetensors, in which lora_A is (rank, inputs) and lora_B (outputs, rank), and
// whole modules ("modules_to_save") are as in the model.

// An adapter of a transformer, and its place in the weight of the linear layer.
struct AdapterPlace {
  std::string layer;   // ours: "layer 1: 1."
  std::string name;    // "q_proj"
  std::string module;  // theirs: "model.layers.0.self_attn.q_proj"
  int64_t inputs = 0;
  int64_t first = 0, outputs = 0;  // columns of the weight
  std::vector<int64_t> order;      // of the outputs in theirs (HuggingFacePiece)

  // Returns the name of a parameter of ours: "layer 1: 1.q_proj.lora_A".
  std::string ParameterOf(absl::string_view matrix) const;
  // Returns the name of a tensor of theirs.
  std::string TensorOf(absl::string_view matrix) const;
};

// Returns the places of all adapters that a model has with `lora`.
std::vector<AdapterPlace> AdapterPlacesOf(const Transformer& model, const LoraOptions& lora);

// Returns whether a folder has adapters, and reads its adapter_config.json. InvalidArgument names
// the key whose value is not supported: other methods than LoRA, DoRA, biases, several ranks,
// chosen layers, modules that are trained as a whole and are none of kWholeLayers.
bool IsPeftFolder(const std::string& folder);
absl::StatusOr<LoraOptions> ReadPeftConfig(const std::string& folder);

// The values of adapters in a folder. Copies share the open file. Thread-safe.
class PeftFolder {
 public:
  // InvalidArgument, naming the file and tensor: the adapters are not those of `model`, or damaged;
  // an embedding and a head that are one here, but are trained apart by PEFT.
  static absl::StatusOr<PeftFolder> Open(const std::string& folder, const Transformer& model);

  const LoraOptions& lora() const;
  // Writes the values of one of our parameters to a tensor in host memory, as
  // HuggingFaceFolder::Read does.
  absl::Status Read(const ModelParameter& parameter, const kernels::Tensor& values) const;
  // Returns a fingerprint of the values, as a line like those of HuggingFaceFolder::Fingerprint.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  struct Contents;
  explicit PeftFolder(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

// Exports the adapters of a checkpoint as such a folder. `base_model`: the name or folder of the
// model that they belong to. AlreadyExists: the folder has an adapter_config.json.
// FailedPrecondition: the checkpoint has no adapters, or is of a model that transformers does not
// know. Errors of Checkpoint::Load, and of the system.
absl::Status ExportToPeft(const Checkpoint& checkpoint, const std::string& base_model,
                          const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_PEFT_H_
