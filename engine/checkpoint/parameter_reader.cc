#include "engine/checkpoint/parameter_reader.h"

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

absl::StatusOr<absl::Span<const float>> ParameterReader::Read(const std::string& name) {
  for (const SavedFile& file : checkpoint_.manifest().files) {
    for (const SavedFile::Tensor& tensor : file.tensors) {
      if (tensor.name != name) continue;
      if (file.name != file_name_) {
        loaded_.reset();
        ASSIGN_OR_RETURN(loaded_, checkpoint_.Load(file.name));
        file_name_ = file.name;
      }
      return loaded_->ValuesOf(tensor, space_);
    }
  }
  return base::DataError(absl::StrCat(checkpoint_.path(), ": there is no parameter \"", name, "\""),
                         absl::StatusCode::kFailedPrecondition);
}

}  // namespace stagecoach::engine
