#include <cuda_runtime.h>

#include <cfloat>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/cached_attention_parts.cuh"

namespace stagecoach::kernels {
namespace {

constexpr int kSumThreads = 256;
static_assert(kSumThreads == kMaxCachedHeadSize);

// A block has head blockIdx.x of row blockIdx.y.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    CachedAttentionSumKernel(const CachedAttentionArguments a, int64_t part_positions, int parts) {
  const int thread = static_cast<int>(threadIdx.x), D = static_cast<int>(a.head_size);
  const int64_t query = static_cast<int64_t>(blockIdx.y) * a.heads + blockIdx.x;
  const int64_t position = *a.first_position + blockIdx.y;
  T* const y = static_cast<T*>(a.y) + query * D;
  if (position >= a.positions) {
    if (thread < D) y[thread] = FromFloat<T>(0.0F);
    return;
  }
  float* const scratch = SharedMemory<float>();
  float* const slice_sums = scratch + kMaxWarps;
  float* const weights = slice_sums + kSumThreads;
  const PartResults results(a, parts);
  const PartStatistics* const statistics = results.statistics + query * parts;
  // Parts from the first to the end of those that have positions which the row sees.
  const int64_t origin = FirstSeenBy(a, *a.first_position);
  const int first = static_cast<int>((FirstSeenBy(a, position) - origin) / part_positions);
  const int end = static_cast<int>((position - origin) / part_positions) + 1;
  float largest = -FLT_MAX;
  for (int part = first + thread; part < end; part += kSumThreads) {
    largest = fmaxf(largest, statistics[part].largest);
  }
  largest = TeamReduce(
      largest, [](float p, float q) { return fmaxf(p, q); }, scratch);
  float total = 0.0F;
  for (int part = first + thread; part < end; part += kSumThreads) {
    const float weight = __expf(statistics[part].largest - largest);
    weights[part] = weight;
    total += weight * statistics[part].sum;
  }
  total = TeamSum(total, scratch);  // afterwards every thread sees all weights
  // A thread has an element of every slices-th part.
  const int slices = kSumThreads / D, slice = thread / D, d = thread % D;
  if (slice < slices) {
    const float* const sums = results.sums + query * parts * D + d;
    float sum = 0.0F;
    for (int part = first + slice; part < end; part += slices)
      sum += weights[part] * sums[part * D];
    slice_sums[thread] = sum;
  }
  __syncthreads();
  if (thread >= D) return;
  float sum = slice_sums[thread];
  for (int other = 1; other < slices; ++other) sum += slice_sums[other * D + thread];
  y[thread] = FromFloat<T>(sum / total);
}

}  // namespace

cudaError_t LaunchCachedAttentionSum(cudaStream_t stream, ElementType type,
                                     const CachedAttentionArguments& a,
                                     const CachedAttentionParts& parts) {
  const dim3 grid(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.rows));
  const size_t shared_bytes =
      (kMaxWarps + kSumThreads + static_cast<size_t>(parts.count)) * sizeof(float);
  const auto launch = [&](auto element) {
    return Launch(CachedAttentionSumKernel<decltype(element)>, grid, dim3(kSumThreads),
                  shared_bytes, stream, a, parts.positions, static_cast<int>(parts.count));
  };
  return type == ElementType::kFloat32 ? launch(float{}) : launch(__nv_bfloat16{});
}

}  // namespace stagecoach::kernels
