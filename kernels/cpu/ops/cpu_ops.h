#ifndef STAGECOACH_KERNELS_CPU_OPS_CPU_OPS_H_
#define STAGECOACH_KERNELS_CPU_OPS_CPU_OPS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <typeinfo>

#include "kernels/cpu/runtime/cpu_stream.h"
#include "kernels/ops/ops.h"

namespace stagecoach::kernels {

// The largest extent of an operation: any element count, and its bytes, then fits in 64 bits.
inline constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
inline bool IsExtent(int64_t value) { return value >= 1 && value <= kMaxExtent; }

class CpuElementwiseOps final : public ElementwiseOps {
 public:
  absl::Status Add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& y) override;
  absl::Status SumTree(Stream& stream, absl::Span<const Tensor> addends, const Tensor& y) override;
  absl::Status Copy(Stream& stream, const Tensor& x, const Tensor& y) override;
  absl::Status Clear(Stream& stream, const Tensor& y) override;
};

class CpuOptimizerOps final : public OptimizerOps {
 public:
  absl::StatusOr<std::unique_ptr<ParameterGroup>> CreateGroup(
      Stream& stream, absl::Span<const ParameterTensors> parameters) override;
  absl::Status AdamW(Stream& stream, const AdamWStep& step, const ParameterGroup& group) override;
  absl::Status Sgd(Stream& stream, const SgdStep& step, const ParameterGroup& group) override;
  absl::Status RoundParameters(Stream& stream, const ParameterGroup& group) override;
  absl::Status SwapAverages(Stream& stream, const ParameterGroup& group) override;
  absl::Status SquaredNorms(Stream& stream, const ParameterGroup& group,
                            const Tensor& squares) override;
  absl::Status ClipScale(Stream& stream, const Tensor& squares, float clip_norm, const Tensor& norm,
                         const Tensor& scale) override;
};

class CpuOps final : public Ops {
 public:
  explicit CpuOps(Device& device) : device_(device) {}

  ElementwiseOps& elementwise() override { return elementwise_; }
  OptimizerOps& optimizer() override { return optimizer_; }

 private:
  absl::StatusOr<std::unique_ptr<Operation>> CreateOf(const std::type_info& type,
                                                      const void* shape) override;

  Device& device_;
  CpuElementwiseOps elementwise_;
  CpuOptimizerOps optimizer_;
};

// Creates a CPU device's operations, which must not outlive it.
std::unique_ptr<Ops> CreateCpuOps(Device& device);

// Returns the CPU stream: every stream that reaches a CPU operation is one.
inline CpuStream& AsCpu(Stream& stream) { return static_cast<CpuStream&>(stream); }

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_CPU_OPS_H_
