#ifndef STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_FILES_H_
#define STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/hugging_face_model.h"
#include "engine/models/transformer.h"
#include "engine/nn/parameter_table.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The parameters of a model in a folder as the library transformers saves one: config.json and
// model.safetensors, or several such files and model.safetensors.index.json; or those of a ResNet
// in one file, a state dict of torchvision's. A process reads only what it asks for, in small
// parts. Copies share the open files, which must not be written to meanwhile. Thread-safe.
class HuggingFaceFolder {
 public:
  // `path`: the folder, or the file if IsStateDict, whose names are torchvision's whatever the
  // model's naming is. InvalidArgument, naming the file and tensor: a file is damaged; a parameter
  // is missing or has another shape (both are reported); there is a tensor that the model does not
  // have, or one of a type that is no floating-point number of 16, 32 or 64 bits and that is not
  // quantized (bits_and_bytes.h); the config.json
  // is that of another model (DifferenceOf); a file for a model that is no ResNet. NotFound: there
  // are no such files.
  static absl::StatusOr<HuggingFaceFolder> Open(const std::string& path,
                                                const HuggingFaceModel& model);

  // Writes the values of one of our parameters, of which the name counts and whether it is
  // quantized, to a tensor in host memory: float32, to which wider ones are rounded, bfloat16, to
  // which these are, or uint8, quantized from float32. What is quantized in the folder is taken as
  // it is, if the parameter is quantized alike. NotFound: the model has no parameter of that name.
  // InvalidArgument: a value is NaN or infinite. Pre-condition: as many values as it has.
  absl::Status Read(const ModelParameter& parameter, const kernels::Tensor& values) const;

  // Returns a fingerprint of the folder's contents, in lines "name: hash" as in
  // TrainerOptions::fingerprint: of what config.json says about the model, and of all tensors, in
  // however many files. Reads all of them.
  absl::StatusOr<std::string> Fingerprint() const;
  // Returns HuggingFaceDropoutOf its config.json.
  const std::string& dropout() const;

 private:
  struct Contents;
  explicit HuggingFaceFolder(std::shared_ptr<const Contents> contents)
      : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

// Returns whether a path is that of a file of tensors rather than of a folder: by its suffix,
// ".safetensors".
bool IsStateDict(absl::string_view path);

// Read the config.json in a folder (ReadHuggingFaceModel, ReadHuggingFaceConfig). Errors name the
// file.
absl::StatusOr<HuggingFaceModel> ReadHuggingFaceModelFile(const std::string& folder);
absl::StatusOr<Transformer> ReadHuggingFaceConfigFile(const std::string& folder);

inline constexpr int64_t kHuggingFaceFileBytes = 5'000'000'000;  // as in transformers
struct HuggingFaceExport {
  // Tensors are in model.safetensors, or in files of at most this size each (a larger tensor gets
  // its own) with an index.
  int64_t file_bytes = kHuggingFaceFileBytes;
  // The file of the run's tokenizer, which is then written as well, and whose token at the end of a
  // text is the model's if the model names none; "": none.
  std::string tokenizer;
  // How the weights of linear layers are written, the head's excepted (bits_and_bytes.h); nothing:
  // in float32.
  std::optional<kernels::Quantization> quantization = {};
};
// Exports a checkpoint as a folder, with adapters added to the weights that they belong to. Needs
// the memory of one layer. AlreadyExists: the folder has a config.json. FailedPrecondition: the
// checkpoint is that of a model that transformers does not know (HuggingFaceModelOf; a ResNet for
// small images), of one without linear layers to quantize, or of another tokenizer. Errors of
// Checkpoint::Load and Tokenizer::Load, and of the system.
absl::Status ExportToHuggingFace(const Checkpoint& checkpoint, const std::string& folder,
                                 const HuggingFaceExport& options = {});

// Exports the parameters of a ResNet as a torchvision state dict, in one file. FailedPrecondition:
// the checkpoint is that of another model. Errors of Checkpoint::Load, and of the system.
absl::Status ExportToTorchvision(const Checkpoint& checkpoint, const std::string& path);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_FILES_H_
