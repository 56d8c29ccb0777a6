#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_POOLING_WINDOWS_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_POOLING_WINDOWS_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/pooling_kernels.h"

// The windows of pooling, and the largest element of one. A thread has N channels.
namespace stagecoach::kernels {

// The range from `begin` to before `end`.
struct Range {
  int begin, end;
};
// Returns the range of window number `window` along an axis.
__device__ inline Range WindowAlong(int window, int stride, int padding, int kernel, int extent) {
  const int begin = window * stride - padding;
  return {begin < 0 ? 0 : begin, begin + kernel < extent ? begin + kernel : extent};
}
// Returns the windows that contain element `at`.
__device__ inline Range WindowsOf(int at, int stride, int padding, int kernel, int windows) {
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
      // Without a branch, of which && would make one for each channel.
      const bool is_number = value[i] == value[i], is_less = values[i] <= value[i];
      const bool is_larger = is_number & !is_less;
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

// Whether windows have 3 by 3 elements: then their places are known when this is compiled.
inline constexpr int kUsualWindow = 3;
inline bool IsUsualWindow(const PoolingExtents& e) {
  return e.kernel_height == kUsualWindow && e.kernel_width == kUsualWindow;
}

// Numbers below 256, one for each channel of a vector.
template <int N>
using Bytes = std::conditional_t<N == 1, uint8_t, std::conditional_t<N == 4, uint32_t, uint64_t>>;

template <int N>
__device__ Bytes<N> PackBytes(const int (&numbers)[N]) {
  Bytes<N> word = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    word = static_cast<Bytes<N>>(word | static_cast<Bytes<N>>(numbers[i]) << (8 * i));
  }
  return word;
}

// The elements of such a window, that of output (p, q). In place of one that is not in the image
// there is the nearest one, which is in the window too: with its own number, it changes nothing.
template <typename T, int N>
class UsualWindow {
 public:
  __device__ UsualWindow(const PoolingExtents& e, const T* image, int p, int q) {
    const int top = p * e.stride - e.padding, left = q * e.stride - e.padding;
    int offsets[k];
#pragma unroll
    for (int j = 0; j < k; ++j) {
      const int w = Clamped(left + j, e.width);
      columns_[j] = w - left;
      offsets[j] = w * e.channels;
    }
#pragma unroll
    for (int i = 0; i < k; ++i) {
      const int h = Clamped(top + i, e.height);
      rows_[i] = h - top;
      const T* const row = image + h * e.width * e.channels;
#pragma unroll
      for (int j = 0; j < k; ++j) elements_[i * k + j] = LoadPacked<T, N>(row + offsets[j]);
    }
  }

  // Returns the largest element of each channel; NaN if there is one.
  __device__ Packed<T, N> Maximum() const {
    if constexpr (kInPairs) {
      Pairs maximum;
      FindMaximum(maximum);
      return FromPairs(maximum);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16> && N == 1) {
      // Of zeros, the instructions for bfloat16 take a positive one: also at any other address.
      T maximum = elements_[0];
#pragma unroll
      for (int i = 1; i < k * k; ++i) maximum = __hmax_nan(maximum, elements_[i]);
      return maximum;
    } else {
      return Pack<T, N>(Find().value);
    }
  }
  // Returns its number.
  __device__ Bytes<N> Number() const {
    if constexpr (kInPairs) {
      return NumberInPairs();
    } else {
      return PackBytes(Find().number);
    }
  }

 private:
  static constexpr int k = kUsualWindow;
  // One instruction compares a pair of bfloat16.
  static constexpr bool kInPairs = std::is_same_v<T, __nv_bfloat16> && N == 8;
  using Pairs = __nv_bfloat162[N / 2 + N % 2];

  __device__ static int Clamped(int at, int extent) { return max(min(at, extent - 1), 0); }
  __device__ int NumberOf(int element) const { return rows_[element / k] * k + columns_[element % k]; }

  __device__ Largest<N> Find() const {
    Largest<N> largest(NumberOf(0));
#pragma unroll
    for (int i = 0; i < k * k; ++i) {
      float values[N];
      Unpack<T, N>(elements_[i], values);
      largest.Add(NumberOf(i), values);
    }
    return largest;
  }

  __device__ void ToPairs(int element, Pairs& pairs) const {
    const Packed<T, N> word = elements_[element];
    memcpy(static_cast<void*>(pairs), &word, sizeof(word));
  }
  __device__ static Packed<T, N> FromPairs(const Pairs& pairs) {
    Packed<T, N> word;
    memcpy(&word, static_cast<const void*>(pairs), sizeof(word));
    return word;
  }
  __device__ void FindMaximum(Pairs& maximum) const {
    ToPairs(0, maximum);
#pragma unroll
    for (int i = 1; i < k * k; ++i) {
      Pairs pairs;
      ToPairs(i, pairs);
#pragma unroll
      for (int c = 0; c < N / 2; ++c) maximum[c] = __hmax2_nan(maximum[c], pairs[c]);
    }
  }
  // The numbers are 16 bits each. The first of equal elements remains, because it comes last.
  __device__ Bytes<N> NumberInPairs() const {
    Pairs maximum;
    FindMaximum(maximum);
    uint32_t numbers[N / 2] = {};
    uint32_t nan[N / 2], any_nan = 0;
#pragma unroll
    for (int i = k * k - 1; i >= 0; --i) {
      Pairs pairs;
      ToPairs(i, pairs);
      const auto number = static_cast<uint32_t>(NumberOf(i)) * 0x10001U;
#pragma unroll
      for (int c = 0; c < N / 2; ++c) {
        const uint32_t is_equal = __heq2_mask(pairs[c], maximum[c]);
        numbers[c] = (number & is_equal) | (numbers[c] & ~is_equal);
      }
    }
#pragma unroll
    for (int c = 0; c < N / 2; ++c) {
      nan[c] = __hneu2_mask(maximum[c], maximum[c]);
      any_nan |= nan[c];
    }
    if (any_nan != 0) {
#pragma unroll
      for (int i = k * k - 1; i >= 0; --i) {
        Pairs pairs;
        ToPairs(i, pairs);
        const auto number = static_cast<uint32_t>(NumberOf(i)) * 0x10001U;
#pragma unroll
        for (int c = 0; c < N / 2; ++c) {
          const uint32_t is_nan = __hneu2_mask(pairs[c], pairs[c]) & nan[c];
          numbers[c] = (number & is_nan) | (numbers[c] & ~is_nan);
        }
      }
    }
    Bytes<N> bytes = 0;
#pragma unroll
    for (int c = 0; c < N / 2; ++c) {
      const uint32_t two = (numbers[c] | numbers[c] >> 8) & 0xFFFFU;
      bytes |= static_cast<Bytes<N>>(two) << (16 * c % 64);
    }
    return bytes;
  }

  Packed<T, N> elements_[k * k];
  int rows_[k], columns_[k];  // of the elements, in the window
};

// Adds a window's gradient to the sums of the element that has that number in it, in those channels
// of which it is the largest.
template <typename T, int N>
__device__ void AddIfLargest(Bytes<N> largest, unsigned number, Packed<T, N> gradient,
                             float (&sums)[N]) {
  float values[N];
  Unpack<T, N>(gradient, values);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const auto four = static_cast<uint32_t>(largest >> (32 * (i / 4)));
    const bool is_largest = ((four ^ number * 0x01010101U) & (0xFFU << (8 * (i % 4)))) == 0;
    sums[i] = is_largest ? sums[i] + values[i] : sums[i];
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_POOLING_WINDOWS_CUH_
