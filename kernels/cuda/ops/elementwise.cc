#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/elementwise_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaElementwise final : public ElementwiseOps {
 public:
  absl::Status Add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& y) override {
    return CudaStatus(LaunchAdd(AsCuda(stream).compute(), ElementTypeOf(y.dtype), y.elements(),
                                a.data, b.data, y.data),
                      "LaunchAdd");
  }

  absl::Status SumTree(Stream& stream, absl::Span<const Tensor> addends, const Tensor& y) override {
    if (addends.size() <= kMostAddends) return SumFew(stream, addends, y);
    // The roots of subtrees are addends in turn.
    absl::InlinedVector<Tensor, kMostAddends> roots;
    for (size_t i = 0; i < addends.size(); i += kMostAddends) {
      const absl::Span<const Tensor> few = addends.subspan(i, kMostAddends);
      const auto first = std::find_if(few.begin(), few.end(),
                                      [](const Tensor& addend) { return !addend.empty(); });
      Tensor& root = roots.emplace_back();
      if (first == few.end()) continue;
      root = *first;
      RETURN_IF_ERROR(SumFew(stream, few, root));
    }
    return SumTree(stream, roots, y);
  }

  absl::Status Copy(Stream& stream, const Tensor& x, const Tensor& y) override {
    return stream.Copy(y.data, x.data, y.bytes());
  }

  absl::Status Clear(Stream& stream, const Tensor& y) override {
    if (y.elements() == 0) return absl::OkStatus();
    IssueCount::Add(1);
    return CudaStatus(
        cudaMemsetAsync(y.data, 0, static_cast<size_t>(y.bytes()), AsCuda(stream).compute()),
        "cudaMemsetAsync");
  }

 private:
  static absl::Status SumFew(Stream& stream, absl::Span<const Tensor> addends, const Tensor& y) {
    Addends pointers = {};
    for (size_t i = 0; i < addends.size(); ++i) {
      if (!addends[i].empty()) pointers.values[i] = addends[i].f32();
    }
    return CudaStatus(LaunchSumTree(AsCuda(stream).compute(), y.elements(), pointers,
                                    static_cast<int>(addends.size()), y.f32()),
                      "LaunchSumTree");
  }
};

}  // namespace

std::unique_ptr<ElementwiseOps> CreateCudaElementwise() {
  return std::make_unique<CudaElementwise>();
}

}  // namespace stagecoach::kernels
