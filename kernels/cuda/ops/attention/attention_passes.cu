#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/math.h"

// The passes over memory before attention: the rotations of positions, rotated queries and keys,
// and the products dy y.
namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;

dim3 BlocksOf(int64_t threads) {
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}
__device__ inline int64_t ThreadOfGrid() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// A thread has a pair of a position. It computes in double: the largest angle is as many radians as
// there are positions, and its remainder after whole turns must be exact to a float.
__global__ void __launch_bounds__(kThreads) RotaryTurnsKernel(const RotaryArguments a) {
  const int64_t half = a.head_size / 2;
  const int64_t thread = ThreadOfGrid();
  const int64_t t = thread / half;
  if (t >= a.positions) return;
  const int64_t pair = thread - t * half;
  const auto i = static_cast<double>(pair), size = static_cast<double>(a.rotary_size);
  const double frequency = 2 * pair < a.rotary_size
                               ? ScaledFrequency(exp2(-2.0 * i / size * a.log2_base), a.scaling,
                                                 pair)
                               : 0.0;
  const double scale = 2 * pair < a.rotary_size ? a.scaling.scale : 1.0;
  const double angle = static_cast<double>(t) * frequency;
  a.turns[thread] =
      make_float2(static_cast<float>(scale * cos(angle)), static_cast<float>(scale * sin(angle)));
}

// A thread has N pairs of a head, which has `vectors` times N pairs.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) TurnKernel(const TurnArguments a, int64_t vectors) {
  const int64_t half = a.head_size / 2;
  const int64_t thread = ThreadOfGrid();
  const int64_t all_heads = thread / vectors;  // of all positions of all samples
  const int64_t row = all_heads / a.heads;
  if (row >= a.samples * a.positions) return;
  const int64_t i = (thread - all_heads * vectors) * N;
  const int64_t h = all_heads - row * a.heads;
  const T* const x = static_cast<const T*>(a.x.data) + row * a.x.stride + h * a.head_size + i;
  T* const y = static_cast<T*>(a.y.data) + row * a.y.stride + h * a.head_size + i;
  const float2* const turns = a.turns + row % a.positions * half + i;
  float first[N], second[N];
  Load(x, first);
  Load(x + half, second);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float cosine = turns[n].x, sine = a.back ? -turns[n].y : turns[n].y;
    const float turned = first[n] * cosine - second[n] * sine;
    second[n] = second[n] * cosine + first[n] * sine;
    first[n] = turned;
  }
  Store(y, first);
  Store(y + half, second);
}

// A row of D numbers belongs to `lanes` neighboring lanes, a power of 2. A lane has the same
// numbers whatever N is.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    RowSumsKernel(const AttentionArguments a, int lanes, float* row_sums) {
  const int64_t thread = ThreadOfGrid();
  const int64_t row = thread / lanes;  // (B, T, H)
  const bool exists = row < a.samples * a.positions * a.heads;
  float sum = 0.0F;
  if (exists) {
    const T* const dy = static_cast<const T*>(a.dy) + row * a.head_size;
    const T* const y = static_cast<const T*>(a.y) + row * a.head_size;
    constexpr int kShare = kVectorWidth<T>;
    const int64_t step = int64_t{lanes} * kShare;
    for (int64_t first = (thread - row * lanes) * kShare; first < a.head_size; first += step) {
#pragma unroll
      for (int64_t d = first; d < first + kShare; d += N) {
        if (N == 1 && d >= a.head_size) break;
        float dy_values[N], y_values[N];
        Load(dy + d, dy_values);
        Load(y + d, y_values);
#pragma unroll
        for (int n = 0; n < N; ++n) sum += dy_values[n] * y_values[n];
      }
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) sum += FromLane(sum, distance);
  if (!exists || thread != row * lanes) return;
  const int64_t position = row / a.heads;  // of all samples
  const int64_t h = row - position * a.heads;
  const int64_t b = position / a.positions;
  const int64_t t = position - b * a.positions;
  row_sums[(b * a.heads + h) * a.positions + t] = sum;
}

}  // namespace

cudaError_t LaunchRotaryTurns(cudaStream_t stream, const RotaryArguments& a) {
  return Launch(RotaryTurnsKernel, BlocksOf(a.positions * (a.head_size / 2)), dim3(kThreads), 0,
                stream, a);
}

cudaError_t LaunchTurn(cudaStream_t stream, ElementType type, const TurnArguments& a) {
  const int64_t half = a.head_size / 2;
  const auto vectors = [&](int width) {
    return half % width == 0 && a.x.stride % width == 0 && a.y.stride % width == 0 &&
           AlignedForVectors(a.x.data, a.y.data);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    const int64_t of_head = half / width();
    return Launch(TurnKernel<decltype(element), decltype(width)::value>,
                  BlocksOf(a.samples * a.positions * a.heads * of_head), dim3(kThreads), 0, stream,
                  a, of_head);
  });
}

cudaError_t LaunchAttentionRowSums(cudaStream_t stream, ElementType type,
                                   const AttentionArguments& a, float* row_sums) {
  const auto vectors = [&](int width) {
    return a.head_size % width == 0 && AlignedForVectors(a.dy, a.y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    int lanes = 1;
    while (lanes < kWarp && lanes * kVectorWidth<decltype(element)> < a.head_size) lanes *= 2;
    return Launch(RowSumsKernel<decltype(element), decltype(width)::value>,
                  BlocksOf(a.samples * a.positions * a.heads * lanes), dim3(kThreads), 0, stream, a,
                  lanes, row_sums);
  });
}

}  // namespace stagecoach::kernels
