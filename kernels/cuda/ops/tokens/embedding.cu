#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens/embedding_kernels.h"
#include "kernels/cuda/ops/tokens/id_order_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ bool IsInVocabulary(int id, int64_t vocabulary) { return id >= 0 && id < vocabulary; }

// Returns whether a block of ids has one. It takes the arguments of either pass.
template <typename Arguments>
__device__ bool IsInBlock(const Arguments& a, int id) {
  return static_cast<unsigned>(id) - static_cast<unsigned>(a.first) <
         static_cast<unsigned>(a.vocabulary);
}

// Computes a vector of a block's summand without positions: a zero of either sign where the id is
// of another block. Rounds it as if it were stored.
template <typename T, int N>
__device__ void LoadOfBlock(const EmbeddingForwardArguments& a, int id, int64_t c,
                            float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = 0.0F;
  if (!IsInBlock(a, id)) return;
  Load(static_cast<const T*>(a.tokens) + (id - a.first) * a.features + c, values);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = ToFloat(FromFloat<T>(__fmul_rn(values[i], a.scale)));
}

// A thread has one vector of y; a row has `row_vectors`.
template <typename T, int N, bool kIsBlock>
__global__ void __launch_bounds__(kThreads)
    EmbeddingForwardKernel(const EmbeddingForwardArguments a, int64_t row_vectors) {
  LetNextKernelStart();
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t n = vector / row_vectors;
  if (n >= a.ids_count) return;
  const int64_t c = (vector - n * row_vectors) * N;
  const int id = a.ids[n];
  float values[N];
  // The first block, which has the positions, alone says that an id is of none.
  const bool has_sum = kIsBlock ? a.first > 0 || IsInVocabulary(id, a.all_ids)
                                : IsInVocabulary(id, a.vocabulary);
  if (!has_sum) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = NAN;
  } else {
    if constexpr (kIsBlock) {
      LoadOfBlock<T>(a, id, c, values);
    } else {
      Load(static_cast<const T*>(a.tokens) + id * a.features + c, values);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= a.scale;
    }
    const int64_t place = a.sequence > 0 ? *a.first_position + n : n % a.positions;
    if (a.position_table != nullptr && (a.sequence == 0 || place < a.sequence)) {
      float position[N];
      Load(static_cast<const T*>(a.position_table) + place * a.features + c, position);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += position[i];
    }
    if constexpr (kIsBlock) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += 0.0F;  // no zero is negative
    }
  }
  Store(static_cast<T*>(a.y) + n * a.features + c, values);
}

// The order of ids for a backward pass, and the sums of ids whose rows continue in other groups:
// each group keeps that of its first id if it began earlier, and that of its last id if it began
// here.
struct Ordered {
  EmbeddingBackwardArguments arguments;
  const int32_t* sorted_ids;
  const int32_t* origins;
  float* begun_before;  // (groups, features)
  float* begun_here;    // (groups, features)
};

// The width of accesses to float32 sums: whole vectors if possible.
template <int N>
constexpr int kSumWidth = N % kVectorWidth<float> == 0 ? kVectorWidth<float> : 1;

template <int N>
__device__ void AddTo(float* to, const float (&values)[N], bool accumulate) {
  constexpr int kWidth = kSumWidth<N>;
#pragma unroll
  for (int first = 0; first < N; first += kWidth) {
    float sums[kWidth] = {};
    if (accumulate) Load(to + first, sums);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += values[first + i];
    Store(to + first, sums);
  }
}

// Returns whether one of the sorted ids has a gradient.
template <bool kIsBlock>
__device__ bool HasGradient(const EmbeddingBackwardArguments& a, int id) {
  if constexpr (kIsBlock) return IsInBlock(a, id);
  return id < a.vocabulary;
}

template <bool kIsBlock>
__device__ float* GradientOf(const EmbeddingBackwardArguments& a, int id) {
  return a.dtokens + (kIsBlock ? id - a.first : static_cast<int64_t>(id)) * a.features;
}

// Adds up a group; a thread has N columns of it.
template <typename T, int N, bool kIsBlock>
__global__ void __launch_bounds__(kThreads) EmbeddingGroupsKernel(const Ordered o) {
  constexpr int kBatch = 8;  // rows that a thread has in flight
  const EmbeddingBackwardArguments& a = o.arguments;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (c >= a.features) return;
  const int64_t group = blockIdx.x;
  const int64_t begin = group * kEmbeddingGroup;
  const int64_t end = min(begin + kEmbeddingGroup, a.ids_count);
  int id = o.sorted_ids[begin];
  if (kIsBlock && (id - a.first >= a.vocabulary || o.sorted_ids[end - 1] < a.first)) return;
  bool began_before = begin > 0 && o.sorted_ids[begin - 1] == id;
  float sum[N] = {};
  for (int64_t first = begin; first < end; first += kBatch) {
    Packed<T, N> rows[kBatch] = {};
    int ids[kBatch] = {};
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k >= end) continue;
      ids[k] = o.sorted_ids[first + k];
      rows[k] =
          LoadPacked<T, N>(static_cast<const T*>(a.dy) + o.origins[first + k] * a.features + c);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k >= end) continue;
      if (ids[k] != id) {  // all of its rows have come
        if (!kIsBlock || IsInBlock(a, id)) {  // without blocks, only the last ones may have none
          float* const to =
              began_before ? o.begun_before + group * a.features : GradientOf<kIsBlock>(a, id);
          AddTo(to + c, sum, !began_before && a.accumulate);
        }
        id = ids[k];
        began_before = false;
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = 0.0F;
      }
      float values[N];
      Unpack<T, N>(rows[k], values);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += a.scale * values[i];
    }
  }
  if (!HasGradient<kIsBlock>(a, id)) return;
  const bool goes_on = end < a.ids_count && o.sorted_ids[end] == id;
  float* const to = began_before ? o.begun_before + group * a.features
                    : goes_on    ? o.begun_here + group * a.features
                                 : GradientOf<kIsBlock>(a, id);
  AddTo(to + c, sum, !began_before && !goes_on && a.accumulate);
}

// Adds up the groups' sums of an id whose rows begin in the group blockIdx.x and continue in
// others.
template <int N, bool kIsBlock>
__global__ void __launch_bounds__(kThreads) EmbeddingJoinKernel(const Ordered o) {
  constexpr int kBatch = 8;
  const EmbeddingBackwardArguments& a = o.arguments;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int64_t begin = blockIdx.x * kEmbeddingGroup;
  const int64_t end = begin + kEmbeddingGroup;
  if (c >= a.features || end >= a.ids_count) return;
  const int id = o.sorted_ids[end];
  const bool begins_here =
      o.sorted_ids[end - 1] == id &&
      (o.sorted_ids[begin] != id || begin == 0 || o.sorted_ids[begin - 1] != id);
  if (!begins_here || !HasGradient<kIsBlock>(a, id)) return;
  const float* const begun_here = o.begun_here + blockIdx.x * a.features + c;
  float sum[N];
  Load(begun_here, sum);
  bool goes_on = true;
  for (int64_t first = blockIdx.x + 1; goes_on; first += kBatch) {
    const float* parts[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t place = (first + k) * kEmbeddingGroup;
      goes_on = place < a.ids_count && o.sorted_ids[place] == id;
      parts[k] = goes_on ? o.begun_before + (first + k) * a.features + c : nullptr;
    }
    // Reads are unconditional so that they overlap.
    float values[kBatch][N];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) Load(parts[k] == nullptr ? begun_here : parts[k], values[k]);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = parts[k] == nullptr ? sum[i] : sum[i] + values[k][i];
    }
  }
  AddTo(GradientOf<kIsBlock>(a, id) + c, sum, a.accumulate);
}

// The blocks of a grid whose threads have `width` columns each, in blocks of whole warps.
struct ColumnBlocks {
  dim3 grid, block;
};
ColumnBlocks CutColumns(int64_t groups, int64_t features, int64_t width) {
  const int64_t warps = (features + kWarp * width - 1) / (kWarp * width);
  const int64_t block_warps = std::min<int64_t>(warps, kWarps);
  return {dim3(static_cast<unsigned>(groups),
               static_cast<unsigned>((warps + block_warps - 1) / block_warps)),
          dim3(static_cast<unsigned>(block_warps * kWarp))};
}

// The parts of the workspace, each a multiple of 16 bytes.
struct Parts {
  int64_t ids_bytes, sums_bytes, order_bytes;
  int64_t bytes() const { return 2 * ids_bytes + 2 * sums_bytes + order_bytes; }
};
int64_t GroupsOf(int64_t ids_count) { return (ids_count + kEmbeddingGroup - 1) / kEmbeddingGroup; }
Parts PartsOf(int64_t ids_count, int64_t features) {
  const auto round_up = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  return {round_up(ids_count * static_cast<int64_t>(sizeof(int32_t))),
          round_up(GroupsOf(ids_count) * features * static_cast<int64_t>(sizeof(float))),
          round_up(IdOrderWorkspaceBytes(ids_count))};
}

}  // namespace

cudaError_t LaunchEmbeddingForward(cudaStream_t stream, ElementType type,
                                   const EmbeddingForwardArguments& a) {
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.tokens, a.position_table, a.y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    const int64_t row_vectors = a.features / width();
    const int64_t blocks = (a.ids_count * row_vectors + kThreads - 1) / kThreads;
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    return Launch(a.all_ids > 0 ? EmbeddingForwardKernel<T, N, true>
                                : EmbeddingForwardKernel<T, N, false>,
                  dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, a, row_vectors);
  });
}

int64_t EmbeddingBackwardBytes(int64_t ids_count, int64_t features) {
  return PartsOf(ids_count, features).bytes();
}

cudaError_t LaunchEmbeddingBackward(cudaStream_t stream, ElementType type,
                                    const EmbeddingBackwardArguments& a) {
  if (!a.accumulate) {
    const auto bytes = static_cast<size_t>(a.vocabulary * a.features) * sizeof(float);
    IssueCount::Add(1);
    const cudaError_t error = cudaMemsetAsync(a.dtokens, 0, bytes, stream);
    if (error != cudaSuccess) return error;
  }
  const Parts parts = PartsOf(a.ids_count, a.features);
  std::byte* next = a.workspace;
  const auto take = [&next](int64_t bytes) { return std::exchange(next, next + bytes); };
  auto* const sorted_ids = reinterpret_cast<int32_t*>(take(parts.ids_bytes));
  auto* const origins = reinterpret_cast<int32_t*>(take(parts.ids_bytes));
  const Ordered ordered = {.arguments = a,
                           .sorted_ids = sorted_ids,
                           .origins = origins,
                           .begun_before = reinterpret_cast<float*>(take(parts.sums_bytes)),
                           .begun_here = reinterpret_cast<float*>(take(parts.sums_bytes))};
  const bool is_block = a.all_ids > 0;
  cudaError_t error = LaunchIdOrder(stream, {.count = a.ids_count,
                                             .vocabulary = is_block ? a.all_ids : a.vocabulary,
                                             .ids = a.ids,
                                             .sorted_ids = sorted_ids,
                                             .origins = origins,
                                             .workspace = reinterpret_cast<int32_t*>(next)});
  if (error != cudaSuccess) return error;
  const int64_t groups = GroupsOf(a.ids_count);
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.dy, a.dtokens);
  };
  error = DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const auto [grid, block] = CutColumns(groups, a.features, N);
    auto* const kernel =
        is_block ? EmbeddingGroupsKernel<T, N, true> : EmbeddingGroupsKernel<T, N, false>;
    return Launch(kernel, grid, block, 0, stream, ordered);
  });
  if (error != cudaSuccess || groups == 1) return error;
  constexpr int kWidth = kVectorWidth<float>;
  const bool has_vectors = a.features % kWidth == 0 && AlignedForVectors(a.dtokens);
  const ColumnBlocks blocks = CutColumns(groups, a.features, has_vectors ? kWidth : 1);
  const auto launch = [&](auto of_vectors, auto of_numbers) {
    return Launch(has_vectors ? of_vectors : of_numbers, blocks.grid, blocks.block, 0, stream,
                  ordered);
  };
  return is_block ? launch(EmbeddingJoinKernel<kWidth, true>, EmbeddingJoinKernel<1, true>)
                  : launch(EmbeddingJoinKernel<kWidth, false>, EmbeddingJoinKernel<1, false>);
}

}  // namespace stagecoach::kernels
