#include "kernels/ops/convolution.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {
namespace {

// Returns whether the product of the extents, and its bytes, can be counted.
bool AreCountable(std::initializer_list<int64_t> extents) {
  constexpr double kMost = 1e15;
  double elements = 1.0;
  for (const int64_t extent : extents) elements *= static_cast<double>(extent);
  return elements < kMost;
}

bool AreConvolutionExtents(const ConvolutionShape& s, int64_t max_extent) {
  for (const int64_t extent :
       {s.samples, s.inputs, s.height, s.width, s.outputs, s.kernel, s.stride, s.groups}) {
    if (extent < 1 || extent > max_extent) return false;
  }
  return s.padding >= 0 && s.padding <= max_extent && s.inputs % s.groups == 0 &&
         s.outputs % s.groups == 0 && s.output_height() >= 1 && s.output_width() >= 1 &&
         AreCountable({s.samples, s.inputs, s.height, s.width}) &&
         AreCountable({s.outputs, s.inputs / s.groups, s.kernel, s.kernel}) &&
         AreCountable({s.samples, s.outputs, s.output_height(), s.output_width()});
}

}  // namespace

absl::Status CheckConvolution(const ConvolutionShape& shape, int64_t max_extent) {
  if (AreConvolutionExtents(shape, max_extent)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "convolution: extents must be 1 to ", max_extent,
      ", the padding not negative, the groups divide inputs and outputs, and the kernel be no "
      "larger than the padded image: ",
      shape.samples, " samples of ", shape.inputs, " x ", shape.height, " x ", shape.width, ", ",
      shape.outputs, " outputs, kernel ", shape.kernel, ", stride ", shape.stride, ", padding ",
      shape.padding, ", ", shape.groups, " groups"));
}

}  // namespace stagecoach::kernels
