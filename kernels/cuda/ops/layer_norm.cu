#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_norm.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/layer_norm_kernels.h"

// LayerNorm or RMSNorm forward: R rows, C features. All threads compute the same one of the two.
// The backward pass is in layer_norm_backward.cu.
namespace stagecoach::kernels {
namespace {

// Up to this many rows leave most multiprocessors idle, and dependent reads dominate the time:
// gamma and beta are then read with x. The bits are the same.
constexpr int64_t kFewRows = 64;
constexpr int kMostHeldWeights = 4;  // vectors, as the registers allow

template <int N>
struct ForwardVector {
  float x[N];
};

// Reads x or, with kAdd, the sum x + addend, rounded to T.
template <typename T, int N, bool kAdd>
struct ForwardSource {
  const T* x;
  const T* addend;

  __device__ void operator()(int64_t c, ForwardVector<N>& vector) const {
    Load(x + c, vector.x);
    if constexpr (kAdd) {
      float addends[N];
      Load(addend + c, addends);
#pragma unroll
      for (int i = 0; i < N; ++i) vector.x[i] = ToFloat(FromFloat<T>(vector.x[i] + addends[i]));
    }
  }
};

// A vector of gamma and beta.
template <typename T, int N>
struct ForwardWeights {
  Packed<T, N> gamma, beta;
};
template <typename T, int N>
struct WeightsSource {
  const T* gamma;
  const T* beta;  // null: 0

  __device__ void operator()(int64_t c, ForwardWeights<T, N>& weights) const {
    weights.gamma = LoadPacked<T, N>(gamma + c);
    weights.beta = beta == nullptr ? Packed<T, N>{} : LoadPacked<T, N>(beta + c);
  }
};

// Makes two passes over values that are at hand: mean(x^2) - mean(x)^2 would lose the digits of a
// row that is far from 0. `weights(k, c, vector)` returns those of the thread's vector number k,
// which is at column c.
template <typename T, int N, typename Row, typename Weights>
__device__ void NormalizeRow(const LayerNormForwardArguments& a, int64_t r, const Row& row,
                             Weights weights) {
  float* const scratch = SharedMemory<float>();
  const float features = static_cast<float>(a.features);
  float mean = 0.0F;
  if (a.centers) {
    float sum = 0.0F;
    row.ForEach([&](int64_t, const ForwardVector<N>& vector) {
#pragma unroll
      for (int i = 0; i < N; ++i) sum += vector.x[i];
    });
    mean = TeamSum(sum, scratch) / features;
  }
  float squares = 0.0F;
  row.ForEach([&](int64_t, const ForwardVector<N>& vector) {
#pragma unroll
    for (int i = 0; i < N; ++i) squares = AddSquare(vector.x[i], mean, squares);
  });
  const float rstd = NormRstd(TeamSum(squares, scratch), features, a.epsilon);
  if (threadIdx.x == 0) {
    if (a.centers) a.statistics[2 * r] = mean;
    a.statistics[a.centers ? 2 * r + 1 : r] = rstd;
  }
  T* const y = static_cast<T*>(a.y) + r * a.features;
  row.ForEachNumbered([&](int k, int64_t c, const ForwardVector<N>& vector) {
    ForwardWeights<T, N> own;
    weights(k, c, own);
    float g[N], b[N], values[N];
    Unpack<T, N>(own.gamma, g);
    Unpack<T, N>(own.beta, b);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = Normalized(vector.x[i], mean, rstd, g[i], b[i]);
    Store(y + c, values);
  });
}

template <typename T, int N, int kHeld, bool kAdd, bool kFew>
__global__ void __launch_bounds__(kMaxTeamThreads)
    LayerNormForwardKernel(const LayerNormForwardArguments a) {
  if constexpr (kFew) {
    LetNextKernelStart();
    WaitForEarlierKernels();
  }
  const int64_t r = TeamRow();
  if (r >= a.rows) return;
  using Vector = ForwardVector<N>;
  const int64_t begin = r * a.features;
  T* const x = static_cast<T*>(a.x) + begin;
  const ForwardSource<T, N, kAdd> source{x,
                                         kAdd ? static_cast<const T*>(a.addend) + begin : nullptr};
  const WeightsSource<T, N> weights{static_cast<const T*>(a.gamma), static_cast<const T*>(a.beta)};
  const auto late = [&](int, int64_t c, ForwardWeights<T, N>& own) { weights(c, own); };
  const auto row = MakeRow<Vector, N, kHeld>(a.features, source);
  HeldRow<ForwardWeights<T, N>, N, kFew ? kHeld : 1> held;
  if constexpr (kFew) held = {a.features, weights};
  if constexpr (kAdd) {
    // Writes come after all reads, because the compiler could not move reads above them.
    row.ForEach([&](int64_t c, const Vector& vector) { Store(x + c, vector.x); });
  }
  if constexpr (kAdd && kHeld == 0) {
    // The addend must be added only once to rows that are read several times.
    const ForwardSource<T, N, false> written{x, nullptr};
    NormalizeRow<T, N>(a, r, MakeRow<Vector, N, kHeld>(a.features, written), late);
  } else if constexpr (kFew) {
    NormalizeRow<T, N>(a, r, row,
                       [&](int k, int64_t, ForwardWeights<T, N>& own) { own = held[k]; });
  } else {
    NormalizeRow<T, N>(a, r, row, late);
  }
}

// Calls `launch(held, layout)` with how many vectors a thread keeps, as a std::integral_constant.
template <int N, typename Launcher>
cudaError_t DispatchRowLength(int64_t rows, int64_t features, Launcher launch) {
  constexpr int kShort = kShortNormShare / N;
  constexpr int kLong = N == 1 ? kShort : kNormShare / N;
  const int64_t vectors = (features + N - 1) / N;
  if (features <= kShortNormRow) {
    return launch(std::integral_constant<int, kShort>(), LayOutTeams(rows, vectors, kShort));
  }
  const TeamLayout layout = LayOutTeams(rows, vectors, kLong);
  if (vectors <= static_cast<int64_t>(layout.block.x) * kLong) {
    return launch(std::integral_constant<int, kLong>(), layout);
  }
  return launch(std::integral_constant<int, 0>(), layout);
}

}  // namespace

cudaError_t LaunchLayerNormForward(cudaStream_t stream, ElementType type,
                                   const LayerNormForwardArguments& a) {
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.x, a.addend, a.gamma, a.beta, a.y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const auto launch = [&](auto held, const TeamLayout& layout) {
      constexpr int kHeld = decltype(held)::value;
      const auto launch_for = [&](auto few) {
        constexpr bool kFew = decltype(few)::value;
        return LaunchEarly(kFew && a.starts_early,
                           a.addend != nullptr ? LayerNormForwardKernel<T, N, kHeld, true, kFew>
                                               : LayerNormForwardKernel<T, N, kHeld, false, kFew>,
                           layout.grid, layout.block, kMaxWarps * sizeof(float), stream, a);
      };
      if constexpr (kHeld > 0 && kHeld <= kMostHeldWeights && N > 1) {
        if (a.rows <= kFewRows) return launch_for(std::true_type());
      }
      return launch_for(std::false_type());
    };
    return DispatchRowLength<N>(a.rows, a.features, launch);
  });
}

}  // namespace stagecoach::kernels
