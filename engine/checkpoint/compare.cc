#include "engine/checkpoint/compare.h"

#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using Named = std::map<std::string, std::pair<const SavedFile*, const SavedFile::Tensor*>>;

Named TensorsOf(const Manifest& manifest) {
  Named named;
  for (const SavedFile& file : manifest.files) {
    for (const SavedFile::Tensor& tensor : file.tensors) named[tensor.name] = {&file, &tensor};
  }
  return named;
}

std::vector<int64_t> IndexOf(int64_t element, const kernels::Shape& shape) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int i = shape.rank(); i-- > 0;) {
    index[static_cast<size_t>(i)] = element % shape.dim(i);
    element /= shape.dim(i);
  }
  return index;
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

void CompareValues(absl::Span<const float> left, absl::Span<const float> right,
                   const kernels::Shape& shape, CheckpointDifference::Tensor& difference) {
  for (size_t i = 0; i < left.size(); ++i) {
    if (SameBits(left[i], right[i])) continue;
    if (difference.elements++ > 0) continue;
    difference.index = IndexOf(static_cast<int64_t>(i), shape);
    difference.left = left[i];
    difference.right = right[i];
  }
}

// Keeps the file that was loaded last: tensors come file by file.
class Loader {
 public:
  explicit Loader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::StatusOr<absl::Span<const float>> Find(const SavedFile& file,
                                               const SavedFile::Tensor& tensor) {
    if (name_ != file.name) {
      ASSIGN_OR_RETURN(LoadedFile loaded, checkpoint_.Load(file.name));
      loaded_.emplace(std::move(loaded));
      name_ = file.name;
    }
    return loaded_->ValuesOf(tensor, space_);
  }

 private:
  const Checkpoint& checkpoint_;
  std::string name_;
  std::optional<LoadedFile> loaded_;
  std::vector<float> space_;
};

}  // namespace

absl::StatusOr<CheckpointDifference> Compare(const Checkpoint& left, const Checkpoint& right) {
  CheckpointDifference difference;
  Named others = TensorsOf(right.manifest());
  Loader of_left(left), of_right(right);
  for (const SavedFile& file : left.manifest().files) {
    for (const SavedFile::Tensor& tensor : file.tensors) {
      const auto found = others.find(tensor.name);
      if (found == others.end() || found->second.second->shape != tensor.shape ||
          found->second.second->quantized != tensor.quantized) {
        difference.only_left.push_back(tensor.name);
        continue;
      }
      const auto [other_file, other] = found->second;
      others.erase(found);
      ++difference.compared;
      if (other->hash == tensor.hash) continue;
      ASSIGN_OR_RETURN(const absl::Span<const float> values, of_left.Find(file, tensor));
      ASSIGN_OR_RETURN(const absl::Span<const float> theirs, of_right.Find(*other_file, *other));
      CheckpointDifference::Tensor differing = {.name = tensor.name, .file = file.name};
      CompareValues(values, theirs, tensor.shape, differing);
      if (differing.elements > 0) difference.tensors.push_back(std::move(differing));
    }
  }
  for (const auto& [name, tensor] : others) difference.only_right.push_back(name);
  return difference;
}

}  // namespace stagecoach::engine
