#include <cuda_runtime.h>

#include <cfloat>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/loss_kernels.h"

// A row is read twice: for its loss, then, mostly from the cache, for its gradient, which may
// overwrite it: each thread writes what only it reads.
namespace stagecoach::kernels {
namespace {

constexpr int kShare = 32;  // classes of a row that a thread would like to have
constexpr int kSumThreads = 512;
constexpr int kNowhere = 0x7FFFFFFF;

// Where reductions of the two kinds of values are kept: apart, so that they need no barrier
// between.
struct Scratch {
  Located located[kMaxWarps];
  float sums[kMaxWarps];
};

template <int N>
struct OutputVector {
  float o[N];
};

template <typename T, int N>
struct OutputSource {
  const T* output;
  __device__ void operator()(int64_t c, OutputVector<N>& vector) const {
    Load(output + c, vector.o);
  }
};

template <typename T, int N>
using OutputRow = StreamedRow<OutputVector<N>, N, OutputSource<T, N>>;

template <int N>
__device__ void Update(Located& largest, int64_t c, const OutputVector<N>& vector) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    // Strictly, so that the first of equals stays.
    if (vector.o[i] > largest.value || largest.index == kNowhere) {
      largest = {vector.o[i], static_cast<int>(c) + i};
    }
  }
}

__device__ inline Located TeamFirstLargest(Located own, Scratch* scratch) {
  return TeamReduce(
      own, [](Located a, Located b) { return FirstLargest(a, b); }, scratch->located);
}

// The terms are of samples.
__device__ inline int64_t ValidRows(const LossArguments& a) {
  return a.terms->valid_samples * a.positions;
}
__device__ inline float ScaleOfRow(const LossArguments& a) {
  return a.terms->scale / static_cast<float>(a.positions);
}

__device__ inline bool IsClass(const LossArguments& a, int label) {
  return label >= 0 && label < a.classes;
}

// -log softmax(output)[label], with the sum of exponentials formed in the same pass as the maximum
// that they are relative to (Milakov & Gimelshein 2018).
template <typename T, int N>
__device__ void CrossEntropyRow(const LossArguments& a, int64_t r, Scratch* scratch) {
  const T* const output = static_cast<const T*>(a.output) + r * a.classes;
  const int label = a.labels[r];
  const bool is_class = IsClass(a, label);
  // Before it may be overwritten.
  const float at_label = is_class ? ToFloat(output[label]) : NAN;
  const OutputRow<T, N> row(a.classes, {output});
  Located largest{-INFINITY, kNowhere};
  float maximum = -FLT_MAX;  // finite, so that differences are no NaN
  float sum = 0.0F;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    Update(largest, c, vector);
    const float before = maximum;
    maximum = fmaxf(maximum, largest.value);
    sum *= __expf(before - maximum);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += __expf(vector.o[i] - maximum);
  });
  largest = TeamFirstLargest(largest, scratch);
  const float row_maximum = fmaxf(largest.value, -FLT_MAX);
  sum = TeamSum(sum * __expf(maximum - row_maximum), scratch->sums);
  if (threadIdx.x == 0) {
    const double loss = log(static_cast<double>(sum)) -
                        (static_cast<double>(at_label) - static_cast<double>(row_maximum));
    a.workspace[r] = {loss, largest.index == label ? 1.0 : 0.0};
  }
  if (a.gradient == nullptr) return;
  __syncwarp();  // where the row is a warp's, nothing else keeps at_label from being read late
  T* const gradient = static_cast<T*>(a.gradient) + r * a.classes;
  const float inverse = is_class ? 1.0F / sum : NAN;
  // A loss is infinite, and the rest finite, if the label's output is minus infinity.
  const float one = 1.0F + 0.0F * at_label;
  const float scale = ScaleOfRow(a);
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float probability = __expf(vector.o[i] - row_maximum) * inverse;
      values[i] = scale * (probability - (c + i == label ? one : 0.0F));
    }
    Store(gradient + c, values);
  });
}

template <typename T, int N>
__device__ void SquaredErrorRow(const LossArguments& a, int64_t r, Scratch* scratch) {
  const int label = a.labels[r];
  const OutputRow<T, N> row(a.classes, {static_cast<const T*>(a.output) + r * a.classes});
  Located largest{-INFINITY, kNowhere};
  float sum = 0.0F;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    Update(largest, c, vector);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float difference = vector.o[i] - (c + i == label ? 1.0F : 0.0F);
      sum += difference * difference;
    }
  });
  largest = TeamFirstLargest(largest, scratch);
  sum = TeamSum(sum, scratch->sums);
  if (!IsClass(a, label)) sum = NAN;
  if (threadIdx.x == 0) {
    a.workspace[r] = {static_cast<double>(sum) / static_cast<double>(a.classes),
                      largest.index == label ? 1.0 : 0.0};
  }
  if (a.gradient == nullptr) return;
  T* const gradient = static_cast<T*>(a.gradient) + r * a.classes;
  // Squares overflow before the differences do.
  const float factor = 2.0F * ScaleOfRow(a) / static_cast<float>(a.classes) + 0.0F * sum;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = factor * (vector.o[i] - (c + i == label ? 1.0F : 0.0F));
    }
    Store(gradient + c, values);
  });
}

template <typename T, int N>
__device__ void ValueErrorRow(const LossArguments& a, int64_t r, Scratch* scratch) {
  const float* const values = a.values + r * a.classes;
  const OutputRow<T, N> row(a.classes, {static_cast<const T*>(a.output) + r * a.classes});
  float sum = 0.0F;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float difference = vector.o[i] - values[c + i];
      sum += difference * difference;
    }
  });
  sum = TeamSum(sum, scratch->sums);
  if (threadIdx.x == 0) {
    a.workspace[r] = {static_cast<double>(sum) / static_cast<double>(a.classes), 0.0};
  }
  if (a.gradient == nullptr) return;
  T* const gradient = static_cast<T*>(a.gradient) + r * a.classes;
  // Squares overflow before the differences do.
  const float factor = 2.0F * ScaleOfRow(a) / static_cast<float>(a.classes) + 0.0F * sum;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    float differences[N];
#pragma unroll
    for (int i = 0; i < N; ++i) differences[i] = factor * (vector.o[i] - values[c + i]);
    Store(gradient + c, differences);
  });
}

enum class LossFormula { kCrossEntropy, kSquaredError, kValueError };

template <typename T, int N>
__device__ void ClearRow(const LossArguments& a, int64_t r) {
  if (a.gradient == nullptr) return;
  T* const gradient = static_cast<T*>(a.gradient) + r * a.classes;
  const float zeros[N] = {};
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < a.classes;
       c += static_cast<int64_t>(blockDim.x) * N) {
    Store(gradient + c, zeros);
  }
}

template <typename T, int N, LossFormula kFormula>
__global__ void __launch_bounds__(kMaxTeamThreads) LossRowsKernel(const LossArguments a) {
  const int64_t r = TeamRow();
  if (r >= a.rows) return;
  Scratch* const scratch = SharedMemory<Scratch>();
  if (r >= ValidRows(a)) {
    ClearRow<T, N>(a, r);
  } else if constexpr (kFormula == LossFormula::kCrossEntropy) {
    CrossEntropyRow<T, N>(a, r, scratch);
  } else if constexpr (kFormula == LossFormula::kSquaredError) {
    SquaredErrorRow<T, N>(a, r, scratch);
  } else {
    ValueErrorRow<T, N>(a, r, scratch);
  }
}

// One block: the order of the sum depends on the number of valid rows alone.
__global__ void __launch_bounds__(kSumThreads) LossSumKernel(const LossArguments a) {
  double* const scratch = SharedMemory<double>();
  double loss = 0.0;
  double correct = 0.0;
  const int64_t valid_rows = ValidRows(a);
#pragma unroll 4
  for (int64_t r = threadIdx.x; r < valid_rows; r += kSumThreads) {
    loss += a.workspace[r].loss;
    correct += a.workspace[r].correct;
  }
  loss = TeamSum(loss, scratch);
  correct = TeamSum(correct, scratch);
  if (threadIdx.x == 0) {
    a.result[0] = loss / static_cast<double>(a.positions);
    a.result[1] = correct;
  }
}

template <LossFormula kFormula>
cudaError_t LaunchLoss(cudaStream_t stream, ElementType type, const LossArguments& a) {
  const auto vectors = [&](int width) {
    return a.classes % width == 0 && AlignedForVectors(a.output, a.gradient);
  };
  const cudaError_t error = DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const TeamLayout layout = LayOutTeams(a.rows, (a.classes + N - 1) / N, kShare / N);
    return Launch(LossRowsKernel<decltype(element), N, kFormula>, layout.grid, layout.block,
                  sizeof(Scratch), stream, a);
  });
  if (error != cudaSuccess) return error;
  return Launch(LossSumKernel, dim3(1), dim3(kSumThreads), kMaxWarps * sizeof(double), stream, a);
}

}  // namespace

cudaError_t LaunchSoftmaxCrossEntropy(cudaStream_t stream, ElementType type,
                                      const LossArguments& arguments) {
  return LaunchLoss<LossFormula::kCrossEntropy>(stream, type, arguments);
}

cudaError_t LaunchMeanSquaredError(cudaStream_t stream, ElementType type,
                                   const LossArguments& arguments) {
  return LaunchLoss<LossFormula::kSquaredError>(stream, type, arguments);
}

cudaError_t LaunchMeanSquaredErrorOfValues(cudaStream_t stream, ElementType type,
                                           const LossArguments& arguments) {
  return LaunchLoss<LossFormula::kValueError>(stream, type, arguments);
}

}  // namespace stagecoach::kernels
