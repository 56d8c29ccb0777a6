#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/attention_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// Kernels, and what they are for.
struct AttentionKernels {
  bool (*fit)(ElementType type, const AttentionArguments& a);
  cudaError_t (*forward)(cudaStream_t stream, ElementType type, const AttentionArguments& a);
  cudaError_t (*backward)(cudaStream_t stream, ElementType type, const AttentionArguments& a);
};

// The first that fit are taken.
constexpr AttentionKernels kKernels[] = {
    {FitsAttentionTiles,
     [](cudaStream_t stream, ElementType, const AttentionArguments& a) {
       return LaunchTiledAttentionForward(stream, a);
     },
     [](cudaStream_t stream, ElementType, const AttentionArguments& a) {
       return LaunchTiledAttentionBackward(stream, a);
     }},
    {[](ElementType, const AttentionArguments&) { return true; }, LaunchPlainAttentionForward,
     LaunchPlainAttentionBackward},
};

// By type and head size alone, for which addresses that are null and strides of 0 stand.
const AttentionKernels& KernelsFor(ElementType type, int64_t head_size) {
  const AttentionArguments a = {.head_size = head_size};
  return *std::find_if(std::begin(kKernels), std::end(kKernels),
                       [&](const AttentionKernels& kernels) { return kernels.fit(type, a); });
}

class CudaAttention final : public AttentionOp {
 public:
  CudaAttention(const AttentionShape& shape, DType type)
      : shape_(shape),
        type_(ElementTypeOf(type)),
        element_bytes_(SizeOf(type)),
        kernels_(KernelsFor(type_, shape.head_size)) {
    const int64_t rows = shape_.samples * shape_.positions;
    const auto take = [this](int64_t bytes) {
      constexpr int64_t kAlignment = 64;
      const int64_t at = workspace_bytes_;
      workspace_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      return at;
    };
    row_sums_at_ = take(rows * shape_.heads * SizeOf(DType::kFloat32));
    if (!turns()) return;
    turns_at_ = take(shape_.positions * shape_.head_size * SizeOf(DType::kFloat32));
    turned_at_ = take(rows * turned_heads() * shape_.head_size * element_bytes_);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Forward(Stream& stream, const Tensor& qkv, const Tensor& statistics, const Tensor& y,
                       std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    ASSIGN_OR_RETURN(AttentionArguments arguments, Prepare(compute, qkv, workspace));
    arguments.statistics = statistics.f32();
    arguments.y = y.data;
    RETURN_IF_ERROR(CheckFits(arguments));
    return CudaStatus(kernels_.forward(compute, type_, arguments), "LaunchAttentionForward");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& qkv, const Tensor& y,
                             const Tensor& statistics, const Tensor& dqkv,
                             std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    ASSIGN_OR_RETURN(AttentionArguments arguments, Prepare(compute, qkv, workspace));
    arguments.statistics = statistics.f32();
    arguments.y = y.data;
    arguments.dy = dy.data;
    auto* const row_sums = reinterpret_cast<float*>(workspace + row_sums_at_);
    RETURN_IF_ERROR(CudaStatus(LaunchAttentionRowSums(compute, type_, arguments, row_sums),
                               "LaunchAttentionRowSums"));
    arguments.row_sums = row_sums;
    const auto gradient_of = [&](int64_t first_head) {
      return HeadsOf<void*>{Head(dqkv, first_head), packed_heads() * shape_.head_size};
    };
    arguments.dq = gradient_of(0);
    arguments.dk = gradient_of(shape_.heads);
    arguments.dv = gradient_of(turned_heads());
    RETURN_IF_ERROR(CheckFits(arguments));
    return CudaStatus(kernels_.backward(compute, type_, arguments), "LaunchAttentionBackward");
  }

 private:
  bool turns() const { return shape_.rotary_base > 0.0F; }
  int64_t turned_heads() const { return shape_.heads + shape_.kv_heads; }
  int64_t packed_heads() const { return shape_.heads + 2 * shape_.kv_heads; }

  // Which kernels compute must not depend on where tensors are: the bits do.
  absl::Status CheckFits(const AttentionArguments& arguments) const {
    if (kernels_.fit(type_, arguments)) return absl::OkStatus();
    return absl::InvalidArgumentError("attention: addresses must be multiples of 16");
  }

  // The tensor's heads from number `first` on.
  void* Head(const Tensor& packed, int64_t first) const {
    return static_cast<std::byte*>(packed.data) + first * shape_.head_size * element_bytes_;
  }

  // The extents, queries, keys and values; turns the first two if they turn.
  absl::StatusOr<AttentionArguments> Prepare(cudaStream_t compute, const Tensor& qkv,
                                             std::byte* workspace) const {
    const int64_t D = shape_.head_size, stride = packed_heads() * D;
    AttentionArguments arguments = {.samples = shape_.samples,
                                    .positions = shape_.positions,
                                    .heads = shape_.heads,
                                    .kv_heads = shape_.kv_heads,
                                    .head_size = D,
                                    .q = {Head(qkv, 0), stride},
                                    .k = {Head(qkv, shape_.heads), stride},
                                    .v = {Head(qkv, turned_heads()), stride}};
    if (!turns()) return arguments;
    auto* const table = reinterpret_cast<float2*>(workspace + turns_at_);
    const RotaryArguments rotary = {.positions = shape_.positions,
                                    .head_size = D,
                                    .log2_base = std::log2(static_cast<double>(shape_.rotary_base)),
                                    .turns = table};
    RETURN_IF_ERROR(CudaStatus(LaunchRotaryTurns(compute, rotary), "LaunchRotaryTurns"));
    std::byte* const turned = workspace + turned_at_;
    const TurnArguments turn = {.samples = shape_.samples,
                                .positions = shape_.positions,
                                .heads = turned_heads(),
                                .head_size = D,
                                .turns = table,
                                .x = arguments.q,
                                .y = turned};
    RETURN_IF_ERROR(CudaStatus(LaunchTurn(compute, type_, turn), "LaunchTurn"));
    arguments.q = {turned, turned_heads() * D};
    arguments.k = {turned + shape_.heads * D * element_bytes_, turned_heads() * D};
    arguments.turns = table;
    return arguments;
  }

  const AttentionShape shape_;
  const ElementType type_;
  const int64_t element_bytes_;
  const AttentionKernels& kernels_;
  int64_t workspace_bytes_ = 0;
  // Where in it they are: dy y (B, H, T); with rotary positions also by how much these turn
  // (T, D/2), and turned queries and keys (B, T, H + G, D).
  int64_t row_sums_at_ = 0, turns_at_ = 0, turned_at_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCuda(const AttentionShape& shape,
                                                          Device& device) {
  RETURN_IF_ERROR(CheckAttention(shape, kMaxCudaExtent));
  // The most for which any grid of these kernels counts its blocks in 31 bits.
  constexpr int64_t kMaxHeadSize = int64_t{1} << 16, kMaxNumbers = int64_t{1} << 38;
  const int64_t rows = shape.samples * shape.positions * (shape.heads + 2 * shape.kv_heads);
  if (shape.head_size > kMaxHeadSize || rows > kMaxNumbers / shape.head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: on CUDA devices, the head size must be 1 to ", kMaxHeadSize,
                     ", and all heads "
                     "of all positions have at most ",
                     kMaxNumbers, " numbers: ", rows, " heads of size ", shape.head_size));
  }
  return std::unique_ptr<AttentionOp>(
      std::make_unique<CudaAttention>(shape, device.activation_type()));
}

}  // namespace stagecoach::kernels
