#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_CUDNN_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_CUDNN_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/graph.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/tuning/tuning_table.h"
#include "kernels/ops/attention.h"

// Attention by cuDNN, in bfloat16 for the head sizes of the tiled kernels: further ways to compute
// the same, if the library is present.
namespace stagecoach::kernels {

// The most scratch that cuDNN's backward gets. It writes the gradients of all scores to memory, so
// it processes the samples or kv heads part by part; a part is only large enough to keep a GPU
// busy. 560 MiB is what a group of four heads with 8,192 positions takes. GPT-2 with 1,024
// positions takes 192 MiB, most of which is memory that its head uses at other times.
inline constexpr int64_t kCudnnScratchBytes = int64_t{560} << 20;

// The division of backward, based on the shape alone. A part has several samples with all their
// heads, or one sample and several kv heads with theirs; the last part may overlap the one before.
struct CudnnParts {
  int64_t samples = 0, kv_heads = 0;  // of each part; 0: backward cannot be divided like this
  // The scratch of forward and of any part. 0: cuDNN can do neither.
  int64_t scratch_bytes = 0;
};
CudnnParts PartsForCudnn(const AttentionShape& shape, int64_t most_scratch_bytes);

// The ways to compute one shape. Thread-safe.
class CudnnAttention {
 public:
  enum class Pass : uint8_t { kForward, kBackward };

  // Unimplemented: the library does not support the shape.
  static absl::StatusOr<std::unique_ptr<CudnnAttention>> Create(
      std::shared_ptr<const cudnn::GpuHandle> handle, const AttentionShape& shape,
      int64_t most_scratch_bytes = kCudnnScratchBytes);
  ~CudnnAttention();

  size_t ways(Pass pass) const { return engines(pass).size(); }
  const Choice& choice(Pass pass, size_t way) const { return engines(pass)[way].choice; }
  // Returns whether it has run: then the next run compiles or loads nothing.
  bool has_run(Pass pass, size_t way) const {
    return of_passes_[static_cast<size_t>(pass)].has_run[way];
  }

  // Computes y and statistics; or dq, dk and dv, which are not rotated back. `scratch` has
  // CudnnParts::scratch_bytes, and `row_sums` (B, H, T) numbers. Unimplemented: the way does not
  // compile, or wants more scratch.
  absl::Status Launch(cudaStream_t stream, Pass pass, size_t way, const AttentionArguments& a,
                      float* row_sums, std::byte* scratch);

 private:
  struct OfPass {
    std::optional<cudnn::Graph> graph;
    std::vector<cudnn::Engine> engines;
    std::unique_ptr<std::atomic<bool>[]> has_run;
    std::map<size_t, absl::StatusOr<cudnn::ExecutionPlan>> plans;
  };

  CudnnAttention(std::shared_ptr<const cudnn::GpuHandle> handle, const AttentionShape& shape,
                 const CudnnParts& parts)
      : handle_(std::move(handle)), shape_(shape), parts_(parts) {}

  const std::vector<cudnn::Engine>& engines(Pass pass) const {
    return of_passes_[static_cast<size_t>(pass)].engines;
  }
  absl::Status AddPass(Pass pass);
  cudnn::AttentionExtents Extents(Pass pass) const;
  // Returns the plan of a way; compiled at the first request.
  absl::StatusOr<const cudnn::ExecutionPlan*> Plan(Pass pass, size_t way);

  const std::shared_ptr<const cudnn::GpuHandle> handle_;
  const AttentionShape shape_;
  const CudnnParts parts_;
  base::Mutex mutex_;  // protects the plans
  OfPass of_passes_[2];
};

// The CudnnAttention objects of one device. Thread-safe.
class CudnnAttentions {
 public:
  // The handle outlives this object.
  explicit CudnnAttentions(cudnn::SharedGpuHandle& handle) : handle_(handle) {}

  // Returns the version of the library as it prints it; "" if no usable one exists. It is part of
  // the key under which measurements are kept.
  std::string version();
  // Returns null if cuDNN does not support the shape or cannot be used.
  std::shared_ptr<CudnnAttention> For(const AttentionShape& shape);

 private:
  cudnn::SharedGpuHandle& handle_;
  base::Mutex mutex_;
  std::map<std::vector<int64_t>, std::shared_ptr<CudnnAttention>> by_shape_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_CUDNN_H_
