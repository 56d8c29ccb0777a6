#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/pooling_kernels.h"
#include "kernels/cuda/ops/images/pooling_windows.cuh"

// Pooling of images whose channels are last: a thread has a vector of N channels of a place, and of
// others along the same row. In backward, it gathers the contributions of the windows to its
// element, in the order of windows, so that a sum is rounded once. The largest element of a window
// is found anew from x: once for each window and the block of threads that needs it if windows have
// few elements (MaxTileKernel, and MaxGroupKernel for 3 by 3 at every second place), otherwise by
// each element.
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

__device__ float ShareOf(const PoolingExtents& e) {
  return 1.0F / (static_cast<float>(e.kernel_height) * static_cast<float>(e.kernel_width));
}

template <typename T, int N, bool kMax, bool kIsUsual>
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
    if constexpr (kMax && kIsUsual) {
      StorePacked<T, N>(to + q * e.channels, UsualWindow<T, N>(e, image, p, q).Maximum());
    } else if constexpr (kMax) {
      Store(to + q * e.channels, LargestOf<N>(e, image, Window(e, p, q)).value);
    } else {
      float sums[N] = {};
      ForEachOfWindow<N>(e, image, Window(e, p, q), [&](int, const float(&values)[N]) {
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
    *reinterpret_cast<Bytes<N>*>(numbers + window * layout.channels + own_channel) =
        PackBytes(largest.number);
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
        const T* const gradient = gradients + (p * e.output_width + q) * e.channels;
        AddIfLargest<T, N>(word, own, LoadPacked<T, N>(gradient), sums);
      }
    }
    Store(to + place * e.channels, sums);
  }
}

// Usual windows that begin at every second place. A *group* is the elements at which a window
// begins and the next ones: of two rows and two columns, the first of which are in two windows
// along that axis and the second in one. A thread has the groups of a window, so that all lanes of a
// warp have the same work, and each gradient is read for four elements at once.
struct GroupLayout {
  int rows = 0, columns = 0;  // groups of an image, including those that begin in the padding
  int bands = 1, pieces = 1;
  int channels = 1;  // of a piece
  dim3 grid, block;
  size_t bytes = 0;  // 0: no band fits into shared memory

  __host__ __device__ int BandBegin(int band) const { return band * rows / bands; }
};

GroupLayout LayOutGroups(const PoolingExtents& e, int width) {
  constexpr int kMostRows = 8;
  GroupLayout layout;
  layout.rows = (e.height - 1 + e.padding) / 2 + 1;
  layout.columns = (e.width - 1 + e.padding) / 2 + 1;
  layout.pieces = (e.channels + kTileChannels - 1) / kTileChannels;
  layout.channels = std::min(e.channels, kTileChannels);
  for (int rows = std::min(kMostRows, layout.rows); rows > 0; --rows) {
    const int64_t bytes = int64_t{rows + 1} * e.output_width * layout.channels;
    if (bytes > static_cast<int64_t>(kDefaultSharedBytes)) continue;
    layout.bands = (layout.rows + rows - 1) / rows;
    layout.bytes = static_cast<size_t>(bytes);
    break;
  }
  const auto across = static_cast<unsigned>(layout.channels / width);
  layout.block = dim3(across, kThreads / across);
  layout.grid = dim3(static_cast<unsigned>(int64_t{e.samples} * layout.bands * layout.pieces));
  return layout;
}

// Walks through the places of a matrix of `columns`, from one of the threadIdx.y of a block on.
struct Walk {
  int row = 0, column = static_cast<int>(threadIdx.y);

  __device__ explicit Walk(int columns) { Wrap(columns); }
  __device__ void Next(int columns) {
    column += static_cast<int>(blockDim.y);
    Wrap(columns);
  }
  __device__ void Wrap(int columns) {
    while (column >= columns) {
      column -= columns;
      ++row;
    }
  }
};

[[maybe_unused]] constexpr int kGroupBlocks = 4;  // on a multiprocessor

template <typename T, int N>
__global__ void __launch_bounds__(kThreads, kGroupBlocks)
    MaxGroupKernel(const PoolingExtents e, const GroupLayout layout, const T* dy, const T* x,
                   T* dx) {
  constexpr unsigned k = kUsualWindow;
  const int piece = static_cast<int>(blockIdx.x) % layout.pieces;
  const int band = static_cast<int>(blockIdx.x) / layout.pieces % layout.bands;
  const int sample = static_cast<int>(blockIdx.x) / layout.pieces / layout.bands;
  const int own_channel = static_cast<int>(threadIdx.x) * N;
  const int channel = piece * layout.channels + own_channel;
  const bool exists = channel < e.channels;
  const int begin = layout.BandBegin(band), end = layout.BandBegin(band + 1);
  // Windows begin - 1 to end - 1 contain elements of the band's groups. Row 0 is that of the first.
  const int first_p = begin - 1;
  const int end_p = end < e.output_height ? end : e.output_height;
  const int64_t first = static_cast<int64_t>(sample) * e.height * e.width * e.channels + channel;
  // (windows, channels of a piece)
  auto* const numbers = SharedMemory<unsigned char>() + own_channel;
  for (Walk at(e.output_width); exists && first_p + at.row < end_p; at.Next(e.output_width)) {
    if (first_p + at.row < 0) continue;
    const UsualWindow<T, N> window(e, x + first, first_p + at.row, at.column);
    *reinterpret_cast<Bytes<N>*>(
        numbers + (at.row * e.output_width + at.column) * layout.channels) = window.Number();
  }
  __syncthreads();
  if (!exists) return;
  const T* const gradients =
      dy + static_cast<int64_t>(sample) * e.output_height * e.output_width * e.channels + channel;
  for (Walk at(layout.columns); begin + at.row < end; at.Next(layout.columns)) {
    const int p = begin + at.row, q = at.column;
    Bytes<N> largest[2][2];  // of windows p - 1 and p, q - 1 and q
    Packed<T, N> gradient[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int window_p = p - 1 + i, window_q = q - 1 + j;
        largest[i][j] = static_cast<Bytes<N>>(~Bytes<N>{0});  // no element's number
        gradient[i][j] = Packed<T, N>{};
        if (window_p < 0 || window_p >= e.output_height) continue;
        if (window_q < 0 || window_q >= e.output_width) continue;
        largest[i][j] = *reinterpret_cast<const Bytes<N>*>(
            numbers + ((at.row + i) * e.output_width + window_q) * layout.channels);
        gradient[i][j] =
            LoadPacked<T, N>(gradients + (window_p * e.output_width + window_q) * e.channels);
      }
    }
    const int h = 2 * p - e.padding, w = 2 * q - e.padding;
    T* const to = dx + first + static_cast<int64_t>(h * e.width + w) * e.channels;
#pragma unroll
    for (int down = 0; down < 2; ++down) {
#pragma unroll
      for (int along = 0; along < 2; ++along) {
        if (h + down < 0 || h + down >= e.height) continue;
        if (w + along < 0 || w + along >= e.width) continue;
        float sums[N] = {};
#pragma unroll
        for (int i = down; i < 2; ++i) {
#pragma unroll
          for (int j = along; j < 2; ++j) {
            // The element's row and column in the window.
            const unsigned row = i == 0 ? 2U : static_cast<unsigned>(down);
            const unsigned column = j == 0 ? 2U : static_cast<unsigned>(along);
            AddIfLargest<T, N>(largest[i][j], row * k + column, gradient[i][j], sums);
          }
        }
        Store(to + (down * e.width + along) * e.channels, sums);
      }
    }
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
    const auto kernel = !e.is_max          ? ForwardKernel<T, N, false, false>
                        : IsUsualWindow(e) ? ForwardKernel<T, N, true, true>
                                           : ForwardKernel<T, N, true, false>;
    return Launch(kernel, layout.grid, layout.block, 0, stream, e, layout, static_cast<const T*>(x),
                  static_cast<T*>(y));
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
    if (e.is_max && IsUsualWindow(e) && e.stride == 2) {
      const GroupLayout groups = LayOutGroups(e, N);
      if (groups.bytes > 0) {
        return Launch(MaxGroupKernel<T, N>, groups.grid, groups.block, groups.bytes, stream, e,
                      groups, gradients, images, to);
      }
    }
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
