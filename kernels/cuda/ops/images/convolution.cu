#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/convolution_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;

unsigned BlocksOf(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// A thread has this many neighbors (3 x 3) of a window, of one output and one input. The next
// thread has the next input. So with channels last a warp moves whole lines; with channels first,
// what one thread leaves of a line is in the cache for the next.
constexpr int kWindowPart = 9;

struct WindowPart {
  int64_t output, input, first;
  int count;
};
__device__ WindowPart PartOf(const WeightOrderArguments& args) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t parts = (args.window + kWindowPart - 1) / kWindowPart;
  const int64_t row = thread / args.padded_inputs;
  WindowPart part;
  part.input = thread - row * args.padded_inputs;
  part.output = row / parts;
  part.first = (row - part.output * parts) * kWindowPart;
  const int64_t left = part.output < args.padded_outputs ? args.window - part.first : 0;
  part.count = static_cast<int>(left < kWindowPart ? left : kWindowPart);
  return part;
}

int64_t PartsOf(const WeightOrderArguments& args) {
  return args.padded_outputs * ((args.window + kWindowPart - 1) / kWindowPart) * args.padded_inputs;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ChannelsLastKernel(const WeightOrderArguments args, const T* first, T* last) {
  const WindowPart part = PartOf(args);
  const bool is_there = part.output < args.outputs && part.input < args.inputs;
  const int64_t from = (part.output * args.inputs + part.input) * args.window + part.first;
  const int64_t to = (part.output * args.window + part.first) * args.padded_inputs + part.input;
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    if (k >= part.count) break;
    last[to + k * args.padded_inputs] = is_there ? first[from + k] : FromFloat<T>(0.0F);
  }
}

template <bool kAccumulate>
__global__ void __launch_bounds__(kThreads)
    ChannelsFirstKernel(const WeightOrderArguments args, const float* last, float* first) {
  const WindowPart part = PartOf(args);
  if (part.output >= args.outputs || part.input >= args.inputs) return;
  const int64_t from = (part.output * args.window + part.first) * args.padded_inputs + part.input;
  const int64_t to = (part.output * args.inputs + part.input) * args.window + part.first;
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    if (k >= part.count) break;
    const float value = last[from + k * args.padded_inputs];
    first[to + k] = kAccumulate ? first[to + k] + value : value;
  }
}

// Without padding, and if a thread has a whole window, the windows of a block's threads follow one
// another with channels first. They pass through shared memory, so that neighboring threads read
// and write neighbors on both sides: otherwise each store of a warp goes to as many sectors of
// memory as it has threads.
// Most such kernels are so short that divisions of 64 bits would be a good part of their time.
bool IsDense(const WeightOrderArguments& args) {
  constexpr int64_t kMostWindows = int64_t{1} << 31;
  return args.window <= kWindowPart && args.padded_inputs == args.inputs &&
         args.padded_outputs == args.outputs && args.outputs * args.inputs < kMostWindows;
}

struct DenseTile {
  int window;
  int64_t first;  // of the block's numbers in the array with channels first
  int count;
  int64_t last;  // the first of the thread's numbers in the other, each `inputs` after the previous
  int own;       // of the thread; all or none
};
__device__ DenseTile TileOf(const WeightOrderArguments& args) {
  const auto inputs = static_cast<unsigned>(args.inputs);
  const unsigned windows = static_cast<unsigned>(args.outputs) * inputs;
  const unsigned begin = blockIdx.x * kThreads, thread = begin + threadIdx.x;
  const unsigned left = windows - begin, output = thread / inputs;
  DenseTile tile;
  tile.window = static_cast<int>(args.window);
  tile.first = int64_t{begin} * tile.window;
  tile.count = static_cast<int>(left < kThreads ? left : kThreads) * tile.window;
  tile.last = static_cast<int64_t>(output) * tile.window * inputs + (thread - output * inputs);
  tile.own = threadIdx.x < left ? tile.window : 0;
  return tile;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DenseLastKernel(const WeightOrderArguments args, const T* first, T* last) {
  T* const windows = SharedMemory<T>();
  const DenseTile tile = TileOf(args);
  T own[kWindowPart];
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    const int i = k * kThreads + static_cast<int>(threadIdx.x);
    if (i < tile.count) own[k] = first[tile.first + i];
  }
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    const int i = k * kThreads + static_cast<int>(threadIdx.x);
    if (i < tile.count) windows[i] = own[k];
  }
  __syncthreads();
  T* const to = last + tile.last;
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    if (k >= tile.own) break;
    to[k * args.inputs] = windows[static_cast<int>(threadIdx.x) * tile.window + k];
  }
}

template <bool kAccumulate>
__global__ void __launch_bounds__(kThreads)
    DenseFirstKernel(const WeightOrderArguments args, const float* last, float* first) {
  float* const windows = SharedMemory<float>();
  const DenseTile tile = TileOf(args);
  const float* const from = last + tile.last;
  float own[kWindowPart];
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    if (k < tile.own) own[k] = from[k * args.inputs];
  }
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    if (k < tile.own) windows[static_cast<int>(threadIdx.x) * tile.window + k] = own[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kWindowPart; ++k) {
    const int i = k * kThreads + static_cast<int>(threadIdx.x);
    if (i >= tile.count) break;
    float* const to = first + tile.first + i;
    *to = kAccumulate ? *to + windows[i] : windows[i];
  }
}

size_t DenseBytes(const WeightOrderArguments& args, size_t element_bytes) {
  return static_cast<size_t>(kThreads * args.window) * element_bytes;
}

// A thread has N neighbors of `to`.
template <typename From, typename To, int N>
__global__ void __launch_bounds__(kThreads)
    CopyColumnsKernel(const CopyColumnsArguments args, int64_t row_vectors) {
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = vector / row_vectors;
  if (row >= args.rows) return;
  const int64_t column = (vector - row * row_vectors) * N;
  const From* const from = static_cast<const From*>(args.from) + row * args.from_columns + column;
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = column + i < args.from_columns ? ToFloat(from[i]) : 0.0F;
  }
  Store(static_cast<To*>(args.to) + vector * N, values);
}

template <typename From, typename To>
cudaError_t CopyColumns(cudaStream_t stream, const CopyColumnsArguments& args) {
  const auto launch = [&](auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t row_vectors = args.to_columns / N;
    return Launch(CopyColumnsKernel<From, To, N>, dim3(BlocksOf(args.rows * row_vectors)),
                  dim3(kThreads), 0, stream, args, row_vectors);
  };
  constexpr int kWidth = kVectorWidth<To>;
  if (args.to_columns % kWidth == 0 && AlignedForVectors(args.to)) {
    return launch(std::integral_constant<int, kWidth>());
  }
  return launch(std::integral_constant<int, 1>());
}

}  // namespace

cudaError_t LaunchChannelsLast(cudaStream_t stream, ElementType type,
                               const WeightOrderArguments& arguments, const void* first,
                               void* last) {
  const dim3 blocks(BlocksOf(PartsOf(arguments)));
  const auto launch = [&](auto element) {
    using T = decltype(element);
    const bool is_dense = IsDense(arguments);
    return Launch(is_dense ? DenseLastKernel<T> : ChannelsLastKernel<T>, blocks, dim3(kThreads),
                  is_dense ? DenseBytes(arguments, sizeof(T)) : 0, stream, arguments,
                  static_cast<const T*>(first), static_cast<T*>(last));
  };
  return type == ElementType::kFloat32 ? launch(float{}) : launch(__nv_bfloat16{});
}

cudaError_t LaunchChannelsFirst(cudaStream_t stream, const WeightOrderArguments& arguments,
                                const float* last, float* first, bool accumulate) {
  const dim3 blocks(BlocksOf(PartsOf(arguments)));
  if (IsDense(arguments)) {
    return Launch(accumulate ? DenseFirstKernel<true> : DenseFirstKernel<false>, blocks,
                  dim3(kThreads), DenseBytes(arguments, sizeof(float)), stream, arguments, last,
                  first);
  }
  return Launch(accumulate ? ChannelsFirstKernel<true> : ChannelsFirstKernel<false>, blocks,
                dim3(kThreads), 0, stream, arguments, last, first);
}

cudaError_t LaunchCopyColumns(cudaStream_t stream, const CopyColumnsArguments& arguments) {
  if (arguments.from_type == ElementType::kFloat32) {
    return CopyColumns<float, float>(stream, arguments);
  }
  return arguments.to_type == ElementType::kFloat32
             ? CopyColumns<__nv_bfloat16, float>(stream, arguments)
             : CopyColumns<__nv_bfloat16, __nv_bfloat16>(stream, arguments);
}

}  // namespace stagecoach::kernels
