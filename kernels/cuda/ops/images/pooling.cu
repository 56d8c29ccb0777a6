#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/pooling_kernels.h"

// Pooling of images whose channels are last: a thread has a vector of N channels of a place, and of
// others along the same row. In backward, it gathers the contributions of the windows to its
// element, in the order of windows, so that a sum is rounded once. The largest element of a window
// is found anew from x: once for each window and the block of threads that needs it if windows have
// few elements (MaxTileKernel), otherwise by each element.
namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;

// Rows of images, each of `width` places: block.x threads for the vectors of a piece of the
// channels, block.y for the places of a row, block.z for rows.
struct Layout {
  int64_t rows = 1;
  int pieces = 1;
  dim3 grid, block;
};

Layout LayOut(int64_t rows, int width, int vectors) {
  constexpr int kWidest = 32, kMostRows = 64;
  Layout layout;
  layout.rows = rows;
  layout.pieces = (vectors + kWidest - 1) / kWidest;
  const int across = (vectors + layout.pieces - 1) / layout.pieces;
  const int turns = (width * across + kThreads - 1) / kThreads;
  const int along = (width + turns - 1) / turns;
  const int down = std::min(kThreads / (across * along), kMostRows);
  layout.block = dim3(static_cast<unsigned>(across), static_cast<unsigned>(along),
                      static_cast<unsigned>(std::max(down, 1)));
  const int64_t blocks = (rows + layout.block.z - 1) / layout.block.z;
  layout.grid = dim3(static_cast<unsigned>(blocks * layout.pieces));
  return layout;
}

// Returns the row of images that a thread has, beyond the last for threads without a row, and its
// channel.
__device__ int64_t RowOf(const Layout& layout) {
  return static_cast<int64_t>(blockIdx.x / static_cast<unsigned>(layout.pieces)) * blockDim.z +
         threadIdx.z;
}
template <int N>
__device__ int ChannelOf(const Layout& layout) {
  const unsigned piece = blockIdx.x % static_cast<unsigned>(layout.pieces);
  return static_cast<int>(piece * blockDim.x + threadIdx.x) * N;
}

// The range from `begin` to before `end`.
struct Range {
  int begin, end;
};
// Returns the range of window number `window` along an axis.
__device__ Range WindowAlong(int window, int stride, int padding, int kernel, int extent) {
  const int begin = window * stride - padding;
  return {begin < 0 ? 0 : begin, begin + kernel < extent ? begin + kernel : extent};
}
// Returns the windows that contain element `at`.
__device__ Range WindowsOf(int at, int stride, int padding, int kernel, int windows) {
  const int place = at + padding;
  const int end = place / stride + 1;
  return {place < kernel ? 0 : (place - kernel) / stride + 1, end < windows ? end : windows};
}

// The window of output (p, q). Its elements are numbered in row order, including those in the
// padding.
struct Window {
  Range rows, columns;
  int row_step;  // from the number of a row's last element to that of the next row's first
  int first;     // the number of the first element within the image

  __device__ Window(const PoolingExtents& e, int p, int q)
      : rows(WindowAlong(p, e.stride, e.padding, e.kernel_height, e.height)),
        columns(WindowAlong(q, e.stride, e.padding, e.kernel_width, e.width)),
        row_step(e.kernel_width - (columns.end - columns.begin) + 1),
        first(NumberOf(e, p, q, rows.begin, columns.begin)) {}

  __device__ static int NumberOf(const PoolingExtents& e, int p, int q, int h, int w) {
    return (h - p * e.stride + e.padding) * e.kernel_width + (w - q * e.stride + e.padding);
  }
};

// Calls visit(number, values) for each element of a window in row order: the reads of many overlap.
// `image` begins at the thread's channel.
template <int N, typename T, typename Visit>
__device__ __forceinline__ void ForEachOfWindow(const PoolingExtents& e, const T* image,
                                                const Window& window, Visit visit) {
  constexpr int kBatch = 9;  // the size of the usual window
  const int across = window.columns.end - window.columns.begin;
  const int to_next_row = (e.width - across + 1) * e.channels;
  int h = window.rows.begin, w = window.columns.begin, number = window.first;
  int at = (h * e.width + w) * e.channels;
  while (h < window.rows.end) {
    Packed<T, N> batch[kBatch];
    int numbers[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      numbers[j] = -1;
      if (h >= window.rows.end) continue;
      numbers[j] = number;
      batch[j] = LoadPacked<T, N>(image + at);
      const bool is_last = ++w == window.columns.end;
      number += is_last ? window.row_step : 1;
      at += is_last ? to_next_row : e.channels;
      w = is_last ? window.columns.begin : w;
      h += is_last ? 1 : 0;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (numbers[j] < 0) continue;
      float values[N];
      Unpack<T, N>(batch[j], values);
      visit(numbers[j], values);
    }
  }
}

// The largest of each channel: the first of equal ones, or the first NaN.
template <int N>
struct Largest {
  float value[N];
  int number[N];

  __device__ explicit Largest(int first) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      value[i] = -INFINITY;
      number[i] = first;
    }
  }
  __device__ void Add(int at, const float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool is_larger = value[i] == value[i] && !(values[i] <= value[i]);
      value[i] = is_larger ? values[i] : value[i];
      number[i] = is_larger ? at : number[i];
    }
  }
};

template <int N, typename T>
__device__ __forceinline__ Largest<N> LargestOf(const PoolingExtents& e, const T* image,
                                                const Window& window) {
  Largest<N> largest(window.first);
  ForEachOfWindow<N>(e, image, window,
                     [&](int number, const float(&values)[N]) { largest.Add(number, values); });
  return largest;
}

__device__ float ShareOf(const PoolingExtents& e) {
  return 1.0F / (static_cast<float>(e.kernel_height) * static_cast<float>(e.kernel_width));
}

template <typename T, int N, bool kMax>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const PoolingExtents e, const Layout layout, const T* x, T* y) {
  const int64_t row = RowOf(layout);
  const int channel = ChannelOf<N>(layout);
  if (row >= layout.rows || channel >= e.channels) return;
  const int sample = static_cast<int>(row) / e.output_height;
  const int p = static_cast<int>(row) - sample * e.output_height;
  const T* const image =
      x + static_cast<int64_t>(sample) * e.height * e.width * e.channels + channel;
  T* const to = y + row * e.output_width * e.channels + channel;
  for (int q = static_cast<int>(threadIdx.y); q < e.output_width;
       q += static_cast<int>(blockDim.y)) {
    const Window window(e, p, q);
    if constexpr (kMax) {
      Store(to + q * e.channels, LargestOf<N>(e, image, window).value);
    } else {
      float sums[N] = {};
      ForEachOfWindow<N>(e, image, window, [&](int, const float(&values)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += values[i];
      });
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] *= ShareOf(e);
      Store(to + q * e.channels, sums);
    }
  }
}

template <typename T, int N, bool kMax>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(const PoolingExtents e, const Layout layout, const T* dy, const T* x, T* dx) {
  const int64_t row = RowOf(layout);
  const int channel = ChannelOf<N>(layout);
  if (row >= layout.rows || channel >= e.channels) return;
  const int sample = static_cast<int>(row) / e.height;
  const int h = static_cast<int>(row) - sample * e.height;
  const T* const gradients =
      dy + static_cast<int64_t>(sample) * e.output_height * e.output_width * e.channels + channel;
  const T* const image =
      kMax ? x + static_cast<int64_t>(sample) * e.height * e.width * e.channels + channel : nullptr;
  T* const to = dx + row * e.width * e.channels + channel;
  const Range down = WindowsOf(h, e.stride, e.padding, e.kernel_height, e.output_height);
  for (int w = static_cast<int>(threadIdx.y); w < e.width; w += static_cast<int>(blockDim.y)) {
    const Range along = WindowsOf(w, e.stride, e.padding, e.kernel_width, e.output_width);
    float sums[N] = {};
    for (int p = down.begin; p < down.end; ++p) {
      for (int q = along.begin; q < along.end; ++q) {
        float values[N];
        Load(gradients + (p * e.output_width + q) * e.channels, values);
        if constexpr (kMax) {
          const Largest<N> largest = LargestOf<N>(e, image, Window(e, p, q));
          const int own = Window::NumberOf(e, p, q, h, w);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            if (largest.number[i] == own) sums[i] += values[i];
          }
        } else {
#pragma unroll
          for (int i = 0; i < N; ++i) sums[i] += values[i];
        }
      }
    }
    if constexpr (!kMax) {
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] *= ShareOf(e);
    }
    Store(to + w * e.channels, sums);
  }
}

// A tile is a band of rows of an image, of a piece of the channels, with all windows that contain
// an element of it. It stores where the largest element of each window is, as a number within the
// window.
constexpr int kTileChannels = 64;
constexpr int kTileRows = 8;
constexpr int kMostOfWindow = 256;  // elements

struct TileLayout {
  int rows = 0;  // of x in a tile; 0: no tile fits into shared memory
  int bands = 1, pieces = 1;
  int channels = 1;  // of a piece
  dim3 grid, block;
  size_t bytes = 0;
};

TileLayout LayOutTiles(const PoolingExtents& e, int width) {
  TileLayout layout;
  layout.pieces = (e.channels + kTileChannels - 1) / kTileChannels;
  layout.channels = std::min(e.channels, kTileChannels);
  if (int64_t{e.kernel_height} * e.kernel_width > kMostOfWindow) return layout;
  for (int rows = std::min(kTileRows, e.height); rows > 0; --rows) {
    const int64_t windows = int64_t{(rows + e.kernel_height - 2) / e.stride + 1} * e.output_width;
    if (windows * layout.channels > static_cast<int64_t>(kDefaultSharedBytes)) continue;
    layout.rows = rows;
    layout.bytes = static_cast<size_t>(windows * layout.channels);
    break;
  }
  if (layout.rows == 0) return layout;
  layout.bands = (e.height + layout.rows - 1) / layout.rows;
  const auto across = static_cast<unsigned>(layout.channels / width);
  layout.block = dim3(across, kThreads / across);
  layout.grid = dim3(static_cast<unsigned>(int64_t{e.samples} * layout.bands * layout.pieces));
  return layout;
}

// Numbers below 256, one for each channel of a vector.
template <int N>
using Bytes = std::conditional_t<N == 1, uint8_t, std::conditional_t<N == 4, uint32_t, uint64_t>>;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    MaxTileKernel(const PoolingExtents e, const TileLayout layout, const T* dy, const T* x, T* dx) {
  auto* const numbers = SharedMemory<unsigned char>();  // (windows, channels of a piece)
  const int piece = static_cast<int>(blockIdx.x) % layout.pieces;
  const int band = static_cast<int>(blockIdx.x) / layout.pieces % layout.bands;
  const int sample = static_cast<int>(blockIdx.x) / layout.pieces / layout.bands;
  const int own_channel = static_cast<int>(threadIdx.x) * N;
  const int channel = piece * layout.channels + own_channel;
  const bool exists = channel < e.channels;
  const int top = band * layout.rows;
  const int bottom = top + layout.rows < e.height ? top + layout.rows : e.height;
  // All windows that contain an element of these rows.
  const int first_p = WindowsOf(top, e.stride, e.padding, e.kernel_height, e.output_height).begin;
  const int end_p =
      WindowsOf(bottom - 1, e.stride, e.padding, e.kernel_height, e.output_height).end;
  const int64_t first = static_cast<int64_t>(sample) * e.height * e.width * e.channels + channel;
  const T* const image = x + first;
  const int windows = (end_p - first_p) * e.output_width;
  for (int window = static_cast<int>(threadIdx.y); exists && window < windows;
       window += static_cast<int>(blockDim.y)) {
    const int down = window / e.output_width;
    const int p = first_p + down, q = window - down * e.output_width;
    const Largest<N> largest = LargestOf<N>(e, image, Window(e, p, q));
    Bytes<N> word = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      word = static_cast<Bytes<N>>(word | static_cast<Bytes<N>>(largest.number[i]) << (8 * i));
    }
    *reinterpret_cast<Bytes<N>*>(numbers + window * layout.channels + own_channel) = word;
  }
  __syncthreads();
  if (!exists) return;
  const T* const gradients =
      dy + static_cast<int64_t>(sample) * e.output_height * e.output_width * e.channels + channel;
  T* const to = dx + first;
  const int places = bottom * e.width;
  for (int place = top * e.width + static_cast<int>(threadIdx.y); place < places;
       place += static_cast<int>(blockDim.y)) {
    const int h = place / e.width, w = place - h * e.width;
    const Range down = WindowsOf(h, e.stride, e.padding, e.kernel_height, e.output_height);
    const Range along = WindowsOf(w, e.stride, e.padding, e.kernel_width, e.output_width);
    float sums[N] = {};
    for (int p = down.begin; p < down.end; ++p) {
      for (int q = along.begin; q < along.end; ++q) {
        const int window = (p - first_p) * e.output_width + q;
        const Bytes<N> word =
            *reinterpret_cast<const Bytes<N>*>(numbers + window * layout.channels + own_channel);
        const auto own = static_cast<unsigned>(Window::NumberOf(e, p, q, h, w));
        float values[N];
        Load(gradients + (p * e.output_width + q) * e.channels, values);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const bool is_own = (static_cast<unsigned>(word >> (8 * i)) & 0xFFU) == own;
          sums[i] = is_own ? sums[i] + values[i] : sums[i];
        }
      }
    }
    Store(to + place * e.channels, sums);
  }
}

}  // namespace

cudaError_t LaunchPoolingForward(cudaStream_t stream, ElementType type, const PoolingExtents& e,
                                 const void* x, void* y) {
  const auto vectors = [&](int width) {
    return e.channels % width == 0 && AlignedForVectors(x, y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const Layout layout =
        LayOut(int64_t{e.samples} * e.output_height, e.output_width, e.channels / N);
    return Launch(e.is_max ? ForwardKernel<T, N, true> : ForwardKernel<T, N, false>, layout.grid,
                  layout.block, 0, stream, e, layout, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t LaunchPoolingBackward(cudaStream_t stream, ElementType type, const PoolingExtents& e,
                                  const void* dy, const void* x, void* dx) {
  const auto vectors = [&](int width) {
    return e.channels % width == 0 && AlignedForVectors(dy, x, dx);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const auto* const gradients = static_cast<const T*>(dy);
    const auto* const images = static_cast<const T*>(x);
    auto* const to = static_cast<T*>(dx);
    if (e.is_max) {
      const TileLayout tiles = LayOutTiles(e, N);
      if (tiles.rows > 0) {
        return Launch(MaxTileKernel<T, N>, tiles.grid, tiles.block, tiles.bytes, stream, e, tiles,
                      gradients, images, to);
      }
    }
    const Layout layout = LayOut(int64_t{e.samples} * e.height, e.width, e.channels / N);
    return Launch(e.is_max ? GatherKernel<T, N, true> : GatherKernel<T, N, false>, layout.grid,
                  layout.block, 0, stream, e, layout, gradients, images, to);
  });
}

}  // namespace stagecoach::kernels
