#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/optimizer_kernels.h"
#include "kernels/cuda/ops/parameter_chunks.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// A group's table, in one piece of device memory: partial squares, chunks, first chunks, in the
// order of their alignment.
class CudaParameterGroup final : public ParameterGroup {
 public:
  static absl::StatusOr<std::unique_ptr<ParameterGroup>> Create(
      Device& device, Stream& stream, absl::Span<const ParameterTensors> parameters) {
    const ParameterChunks cut = CutIntoChunks(parameters);
    const size_t chunks_at = cut.chunks.size() * sizeof(double);
    const size_t first_at = chunks_at + cut.chunks.size() * sizeof(ParameterChunk);
    const size_t bytes = first_at + cut.first_chunk.size() * sizeof(int32_t);
    ASSIGN_OR_RETURN(HostBuffer host, device.AllocateHost(static_cast<int64_t>(bytes)));
    ASSIGN_OR_RETURN(Buffer memory, device.AllocateTable(static_cast<int64_t>(bytes)));
    if (!cut.chunks.empty()) {
      std::memcpy(host.data() + chunks_at, cut.chunks.data(), first_at - chunks_at);
    }
    std::memcpy(host.data() + first_at, cut.first_chunk.data(), bytes - first_at);
    RETURN_IF_ERROR(stream.CopyFromHost(memory.data(), host.data(), static_cast<int64_t>(bytes)));
    const ParameterTable table = {
        .chunks = reinterpret_cast<const ParameterChunk*>(memory.data() + chunks_at),
        .chunk_count = static_cast<int32_t>(cut.chunks.size()),
        .first_chunk = reinterpret_cast<const int32_t*>(memory.data() + first_at),
        .parameter_count = static_cast<int32_t>(parameters.size()),
        .has_emas = std::any_of(parameters.begin(), parameters.end(),
                                [](const ParameterTensors& own) { return !own.ema.empty(); }),
        .partial_squares = reinterpret_cast<double*>(memory.data())};
    return std::unique_ptr<ParameterGroup>(
        new CudaParameterGroup(table, std::move(host), std::move(memory)));
  }

  const ParameterTable& table() const { return table_; }

 private:
  CudaParameterGroup(const ParameterTable& table, HostBuffer host, Buffer memory)
      : table_(table), host_(std::move(host)), memory_(std::move(memory)) {}

  const ParameterTable table_;
  const HostBuffer host_;  // the copy may still be reading it
  const Buffer memory_;
};

const ParameterTable& TableOf(const ParameterGroup& group) {
  return static_cast<const CudaParameterGroup&>(group).table();
}

AdamWCoefficients CoefficientsOf(const AdamWStep& step) {
  // Computed in double: 1 - beta^t has few digits left at the first steps.
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  return {.beta1 = step.beta1,
          .beta2 = step.beta2,
          .epsilon = step.epsilon,
          .rate = static_cast<float>(step.learning_rate / correction1),
          .root = static_cast<float>(1.0 / std::sqrt(correction2)),
          .keep = 1.0F - step.learning_rate * step.weight_decay,
          .learning_rate = step.learning_rate,
          .weight_decay = step.weight_decay,
          .ema_share = step.ema_share};
}

class CudaOptimizer final : public OptimizerOps {
 public:
  explicit CudaOptimizer(Device& device) : device_(device) {}

  absl::StatusOr<std::unique_ptr<ParameterGroup>> CreateGroup(
      Stream& stream, absl::Span<const ParameterTensors> parameters) override {
    return CudaParameterGroup::Create(device_, stream, parameters);
  }

  absl::Status AdamW(Stream& stream, const AdamWStep& step, const ParameterGroup& group) override {
    return CudaStatus(LaunchAdamW(AsCuda(stream).compute(), TableOf(group), CoefficientsOf(step),
                                  step.gradient_scale.f32()),
                      "LaunchAdamW");
  }

  absl::Status Sgd(Stream& stream, const SgdStep& step, const ParameterGroup& group) override {
    const SgdCoefficients coefficients = {.learning_rate = step.learning_rate,
                                          .momentum = step.momentum,
                                          .weight_decay = step.weight_decay,
                                          .ema_share = step.ema_share};
    return CudaStatus(LaunchSgd(AsCuda(stream).compute(), TableOf(group), coefficients,
                                step.gradient_scale.f32()),
                      "LaunchSgd");
  }

  absl::Status RoundParameters(Stream& stream, const ParameterGroup& group) override {
    return CudaStatus(LaunchRoundParameters(AsCuda(stream).compute(), TableOf(group)),
                      "LaunchRoundParameters");
  }

  absl::Status SwapAverages(Stream& stream, const ParameterGroup& group) override {
    return CudaStatus(LaunchSwapAverages(AsCuda(stream).compute(), TableOf(group)),
                      "LaunchSwapAverages");
  }

  absl::Status SquaredNorms(Stream& stream, const ParameterGroup& group,
                            const Tensor& squares) override {
    return CudaStatus(LaunchSquaredNorms(AsCuda(stream).compute(), TableOf(group), squares.f64()),
                      "LaunchSquaredNorms");
  }

  absl::Status ClipScale(Stream& stream, const Tensor& squares, float clip_norm, const Tensor& norm,
                         const Tensor& scale) override {
    return CudaStatus(LaunchClipScale(AsCuda(stream).compute(), squares.f64(), squares.shape.dim(0),
                                      squares.shape.dim(1), clip_norm, norm.f64(), scale.f32()),
                      "LaunchClipScale");
  }

 private:
  Device& device_;
};

}  // namespace

std::unique_ptr<OptimizerOps> CreateCudaOptimizer(Device& device) {
  return std::make_unique<CudaOptimizer>(device);
}

}  // namespace stagecoach::kernels
