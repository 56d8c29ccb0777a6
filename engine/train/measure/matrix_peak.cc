#include "engine/train/measure/matrix_peak.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "engine/train/measure/device_timer.h"
#include "kernels/cpu/runtime/register_peak.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using kernels::Shape;
using kernels::Tensor;

constexpr int64_t kSmallest = 128;
constexpr int64_t kLargest = 8192;
constexpr double kLongEnough = 2e-3;  // seconds of a product that keeps a GPU busy
constexpr int kRepetitions = 4;

// Returns the seconds of a product of matrices of `size` rows and columns.
absl::StatusOr<double> ProductSeconds(int64_t size, kernels::Device& device) {
  ASSIGN_OR_RETURN(DeviceTimer timer, DeviceTimer::Create(device));
  const auto random = [&](const Shape& shape) {
    return timer.Random(shape, device.activation_type());
  };
  ASSIGN_OR_RETURN(const Tensor x, random(Shape{size, size}));
  ASSIGN_OR_RETURN(const Tensor w, random(Shape{size, size}));
  ASSIGN_OR_RETURN(const Tensor y, random(Shape{size, size}));
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::LinearOp> op,
                   device.ops().Create(kernels::LinearShape{
                       .rows = size, .inputs = size, .outputs = size, .has_bias = false}));
  ASSIGN_OR_RETURN(std::byte* const workspace, timer.Workspace(op->workspace_bytes()));
  return timer.Seconds(kRepetitions, [&](kernels::Stream& stream, int) {
    return op->Forward(stream, x, w, {}, {}, y, workspace);
  });
}

absl::StatusOr<double> GpuPeakFlops(DeviceSpec spec) {
  spec.memory_bytes = 0;
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device, MakeDevice(spec, 0));
  double best = 0;
  for (int64_t size = kSmallest; size <= kLargest; size *= 2) {
    ASSIGN_OR_RETURN(const double seconds, ProductSeconds(size, *device));
    const auto n = static_cast<double>(size);
    best = std::max(best, 2.0 * n * n * n / seconds);
    if (seconds > kLongEnough) break;
  }
  return best;
}

}  // namespace

absl::StatusOr<double> MatrixPeakFlops(const DeviceSpec& spec, int devices) {
  if (spec.kind == DeviceKind::kCpu) {
    int threads = 0;
    for (int device = 0; device < devices; ++device) threads += spec.threads_of(device);
    return kernels::RegisterPeakFlops(std::min(threads, base::AvailableCpus()), spec.precision);
  }
  std::set<int> gpus;
  for (int device = 0; device < devices; ++device) gpus.insert(spec.gpu_of(device));
  ASSIGN_OR_RETURN(const double flops, GpuPeakFlops(spec));
  return flops * static_cast<double>(gpus.size());
}

}  // namespace stagecoach::engine
