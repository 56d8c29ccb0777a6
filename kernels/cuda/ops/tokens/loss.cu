#include <cuda_runtime.h>

#include "kernels/cuda/device/exponential.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens/cross_entropy.cuh"
#include "kernels/cuda/ops/tokens/loss_kernels.h"

// A row is read twice: first for its loss, then for its gradient, mostly from the cache or, if it
// is long, from shared memory. The gradient may overwrite the row: each thread writes only what it
// alone reads.
namespace stagecoach::kernels {
namespace {

constexpr int kSumThreads = 512;
// Rows of a softmax cross-entropy of more bytes than the first limit are kept in shared memory
// between their two passes, because with four blocks of 512 threads on a multiprocessor they would
// no longer be in its first cache. Those above the second limit, which is what a block may have on
// all GPUs since compute capability 8.0, are read from memory again. The 100,528 bytes of 50,257
// classes in bfloat16 are kept, by two blocks on a multiprocessor of an H100.
[[maybe_unused]] constexpr int kCrossEntropyBlocks = 2;
constexpr size_t kCachedBytes = size_t{32} << 10;
constexpr size_t kMostSharedBytes = size_t{99} << 10;

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
__device__ void Update(Located& largest, int64_t c, const float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    // strictly, so that the first of equals wins
    if (values[i] > largest.value || largest.index == kNowhere) {
      largest = {values[i], static_cast<int>(c) + i};
    }
  }
}

// Replaces a vector of logits from class c on by their gradients, with zeros after the last class.
// Products and sums are rounded one by one, here and in the row's own sum, so that all kernels that
// contain them compute the same bits.
template <int N, bool kIsCapped>
__device__ void LogitGradients(const RowSoftmax& row, int classes, int c, float cap,
                               float (&values)[N]) {
  float slopes[N];
  if constexpr (kIsCapped) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float t = __fdiv_rn(values[i], cap);
      slopes[i] = __fadd_rn(1.0F, -__fmul_rn(t, t));
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = __fmul_rn(FlushedExp(values[i] - row.maximum), row.factor);
  if (static_cast<unsigned>(row.label - c) < N) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (c + i == row.label) values[i] = __fadd_rn(values[i], -row.scale);
    }
  }
  if constexpr (kIsCapped) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = __fmul_rn(values[i], slopes[i]);
  }
  if (c + N <= classes) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (c + i >= classes) values[i] = 0.0F;
  }
}

// Computes -log softmax(output)[label].
template <typename T, int N, bool kKeep, bool kIsCapped>
__device__ void CrossEntropyRow(const CrossEntropyTile& tile, int64_t r, RowScratch* scratch) {
  const LossArguments& a = tile.loss;
  const T* const output = static_cast<const T*>(a.output) + r * tile.leading;
  const int classes = static_cast<int>(a.classes);
  const int label = a.labels[tile.first_row + r];
  const bool is_class = IsClass(a, label);
  // This is read before it may be overwritten.
  const float at_label = is_class ? ToFloat(output[label]) : NAN;
  const TwiceReadRow<T, N, kKeep> row(a.classes, output,
                                      reinterpret_cast<Packed<T, N>*>(scratch + 1));
  const RowSums sums = SumsOfRow(row, classes, scratch);
  const float scale = ScaleOfRow(a);
  // A loss is infinite, and the rest finite, if the label's output is minus infinity.
  const RowSoftmax softmax = {sums.maximum, is_class ? scale / sums.sum : NAN,
                              scale * (1.0F + 0.0F * at_label), is_class ? label : 0};
  if (threadIdx.x == 0) {
    const double loss = log(static_cast<double>(sums.sum)) -
                        (static_cast<double>(at_label) - static_cast<double>(sums.maximum));
    a.workspace[tile.first_row + r] = {loss, sums.largest == label ? 1.0 : 0.0};
    if (tile.softmax != nullptr) tile.softmax[tile.first_row + r] = softmax;
  }
  if (a.gradient == nullptr) return;
  __syncwarp();  // if the row belongs to a warp, nothing else keeps at_label from being read late
  T* const gradient = static_cast<T*>(a.gradient) + r * tile.leading;
  row.Second([&](int c, float(&values)[N]) {
    LogitGradients<N, kIsCapped>(softmax, classes, c, tile.cap, values);
    Store(gradient + c, values);
  });
}

template <typename T, int N>
__device__ void SquaredErrorRow(const LossArguments& a, int64_t r, RowScratch* scratch) {
  const int label = a.labels[r];
  const OutputRow<T, N> row(a.classes, {static_cast<const T*>(a.output) + r * a.classes});
  Located largest{-INFINITY, kNowhere};
  float sum = 0.0F;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    Update(largest, c, vector.o);
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
__device__ void ValueErrorRow(const LossArguments& a, int64_t r, RowScratch* scratch) {
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

__device__ inline float WeightOfClass(const LossArguments& a, int64_t c) {
  return a.class_weights == nullptr ? 1.0F : a.class_weights[c];
}

template <typename T, int N>
__device__ void WeightedCrossEntropyRow(const LossArguments& a, int64_t r, RowScratch* scratch) {
  const int label = a.labels[r];
  const bool is_class = IsClass(a, label);
  const T* const output = static_cast<const T*>(a.output) + r * a.classes;
  // This is read before it may be overwritten.
  const float at_label = is_class ? ToFloat(output[label]) : NAN;
  const OutputRow<T, N> row(a.classes, {output});
  Located largest{-INFINITY, kNowhere};
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) { Update(largest, c, vector.o); });
  largest = TeamFirstLargest(largest, scratch);
  const float maximum = fmaxf(largest.value, -FLT_MAX);
  const float share = a.label_smoothing / static_cast<float>(a.classes);
  float sum = 0.0F;
  float smoothed = 0.0F;
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float difference = vector.o[i] - maximum;
      const float weight = share * WeightOfClass(a, c + i);
      sum += __expf(difference);
      if (weight > 0.0F) smoothed += weight * difference;
    }
  });
  sum = TeamSum(sum, scratch->sums);
  smoothed = TeamSum(smoothed, scratch->sums);
  const float own = is_class ? (1.0F - a.label_smoothing) * WeightOfClass(a, label) : NAN;
  double loss = static_cast<double>(own + a.smoothed_total) * log(static_cast<double>(sum)) -
                static_cast<double>(smoothed);
  if (!(own <= 0.0F)) {
    loss -= static_cast<double>(own) *
            (static_cast<double>(at_label) - static_cast<double>(maximum));
  }
  if (threadIdx.x == 0) a.workspace[r] = {loss, largest.index == label ? 1.0 : 0.0};
  if (a.gradient == nullptr) return;
  __syncwarp();  // if the row belongs to a warp, nothing else keeps at_label from being read late
  T* const gradient = static_cast<T*>(a.gradient) + r * a.classes;
  const float scale = ScaleOfRow(a);
  // A loss that is not finite shows in the gradient.
  const float factor = (own + a.smoothed_total) / sum + 0.0F * static_cast<float>(loss);
  row.ForEach([&](int64_t c, const OutputVector<N>& vector) {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float q = share * WeightOfClass(a, c + i) + (c + i == label ? own : 0.0F);
      values[i] = scale * (__expf(vector.o[i] - maximum) * factor - q);
    }
    Store(gradient + c, values);
  });
}

// The formulas of rows that are read as they are.
enum class ErrorFormula { kOfLabels, kOfValues, kWeightedCrossEntropy };

// Clears the gradient of a row that does not count.
template <typename T, int N>
__device__ void ClearRow(int64_t columns, T* gradient) {
  const float zeros[N] = {};
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < columns;
       c += static_cast<int64_t>(blockDim.x) * N) {
    Store(gradient + c, zeros);
  }
}

template <typename T, int N, ErrorFormula kFormula>
__global__ void __launch_bounds__(kMaxTeamThreads) ErrorRowsKernel(const LossArguments a) {
  const int64_t r = TeamRow();
  if (r >= a.rows) return;
  RowScratch* const scratch = SharedMemory<RowScratch>();
  if (!Counts(a, r)) {
    if (threadIdx.x == 0) a.workspace[r] = {0.0, 0.0};
    if (a.gradient == nullptr) return;
    ClearRow<T, N>(a.classes, static_cast<T*>(a.gradient) + r * a.classes);
  } else if constexpr (kFormula == ErrorFormula::kOfLabels) {
    SquaredErrorRow<T, N>(a, r, scratch);
  } else if constexpr (kFormula == ErrorFormula::kWeightedCrossEntropy) {
    WeightedCrossEntropyRow<T, N>(a, r, scratch);
  } else {
    ValueErrorRow<T, N>(a, r, scratch);
  }
}

template <typename T, int N, bool kKeep, bool kIsCapped>
__global__ void __launch_bounds__(kMaxTeamThreads, kCrossEntropyBlocks)
    CrossEntropyRowsKernel(const CrossEntropyTile tile) {
  const LossArguments& a = tile.loss;
  const int64_t r = TeamRow();
  if (r >= a.rows) return;
  if (Counts(a, tile.first_row + r)) {
    CrossEntropyRow<T, N, kKeep, kIsCapped>(tile, r, SharedMemory<RowScratch>());
    return;
  }
  if (threadIdx.x == 0) {
    a.workspace[tile.first_row + r] = {0.0, 0.0};
    if (tile.softmax != nullptr) tile.softmax[tile.first_row + r] = {0.0F, 0.0F, 0.0F, -1};
  }
  if (a.gradient == nullptr) return;
  ClearRow<T, N>(a.classes, static_cast<T*>(a.gradient) + r * tile.leading);
}

template <typename T, int N, bool kIsCapped>
__global__ void __launch_bounds__(kMaxTeamThreads, kCrossEntropyBlocks)
    CrossEntropyGradientKernel(const CrossEntropyTile tile, const RowSoftmax* softmax) {
  const LossArguments& a = tile.loss;
  const int64_t r = TeamRow();
  if (r >= a.rows) return;
  RowSoftmax row_softmax = softmax[tile.first_row + r];
  T* const gradient = static_cast<T*>(a.gradient) + r * tile.leading;
  if (row_softmax.label < 0) {
    ClearRow<T, N>(a.classes, gradient);
    return;
  }
  row_softmax.label -= tile.first_class;  // it may be none of these classes
  const T* const output = static_cast<const T*>(a.output) + r * tile.leading;
  const TwiceReadRow<T, N, false> row(a.classes, output, nullptr);
  row.Second([&](int c, float(&values)[N]) {
    LogitGradients<N, kIsCapped>(row_softmax, static_cast<int>(a.classes), c, tile.cap, values);
    Store(gradient + c, values);
  });
}

// There is only one block: the order of the sum depends on the number of valid rows alone.
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

template <ErrorFormula kFormula>
cudaError_t LaunchError(cudaStream_t stream, ElementType type, const LossArguments& a) {
  const auto vectors = [&](int width) {
    return a.classes % width == 0 && AlignedForVectors(a.output, a.gradient);
  };
  const cudaError_t error = DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const TeamLayout layout = LayOutTeams(a.rows, (a.classes + N - 1) / N, kRowShare / N);
    return Launch(ErrorRowsKernel<decltype(element), N, kFormula>, layout.grid, layout.block,
                  sizeof(RowScratch), stream, a);
  });
  if (error != cudaSuccess) return error;
  return LaunchLossSum(stream, a);
}

}  // namespace

cudaError_t LaunchCrossEntropyRows(cudaStream_t stream, ElementType type,
                                   const CrossEntropyTile& tile) {
  return DispatchTile(
      type, tile, [&](auto element, auto width, const TeamLayout& layout, size_t row_bytes) {
        using T = decltype(element);
        constexpr int N = decltype(width)::value;
        const bool keeps = tile.loss.gradient != nullptr && row_bytes > kCachedBytes &&
                           sizeof(RowScratch) + row_bytes <= kMostSharedBytes;
        const size_t bytes = sizeof(RowScratch) + (keeps ? row_bytes : 0);
        const auto launch = [&](auto kernel) {
          return Launch(kernel, layout.grid, layout.block, bytes, stream, tile);
        };
        if (tile.cap == 0.0F) {
          return keeps ? launch(CrossEntropyRowsKernel<T, N, true, false>)
                       : launch(CrossEntropyRowsKernel<T, N, false, false>);
        }
        return keeps ? launch(CrossEntropyRowsKernel<T, N, true, true>)
                     : launch(CrossEntropyRowsKernel<T, N, false, true>);
      });
}

cudaError_t LaunchCrossEntropyGradient(cudaStream_t stream, ElementType type,
                                       const CrossEntropyTile& tile, const RowSoftmax* softmax) {
  return DispatchTile(
      type, tile, [&](auto element, auto width, const TeamLayout& layout, size_t /*row_bytes*/) {
        using T = decltype(element);
        constexpr int N = decltype(width)::value;
        return Launch(tile.cap == 0.0F ? CrossEntropyGradientKernel<T, N, false>
                                       : CrossEntropyGradientKernel<T, N, true>,
                      layout.grid, layout.block, 0, stream, tile, softmax);
      });
}

cudaError_t LaunchLossSum(cudaStream_t stream, const LossArguments& a) {
  return Launch(LossSumKernel, dim3(1), dim3(kSumThreads), kMaxWarps * sizeof(double), stream, a);
}

cudaError_t LaunchSoftmaxCrossEntropy(cudaStream_t stream, ElementType type,
                                      const LossArguments& arguments) {
  const cudaError_t error =
      LaunchCrossEntropyRows(stream, type, {.loss = arguments, .leading = arguments.classes});
  return error == cudaSuccess ? LaunchLossSum(stream, arguments) : error;
}

cudaError_t LaunchWeightedCrossEntropy(cudaStream_t stream, ElementType type,
                                       const LossArguments& arguments) {
  return LaunchError<ErrorFormula::kWeightedCrossEntropy>(stream, type, arguments);
}

cudaError_t LaunchMeanSquaredError(cudaStream_t stream, ElementType type,
                                   const LossArguments& arguments) {
  return LaunchError<ErrorFormula::kOfLabels>(stream, type, arguments);
}

cudaError_t LaunchMeanSquaredErrorOfValues(cudaStream_t stream, ElementType type,
                                           const LossArguments& arguments) {
  return LaunchError<ErrorFormula::kOfValues>(stream, type, arguments);
}

}  // namespace stagecoach::kernels
