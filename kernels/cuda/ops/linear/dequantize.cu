#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/linear/dequantize_kernels.h"
#include "kernels/cuda/ops/linear/nf4_levels.cuh"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;  // of a tile, along its columns
constexpr int kTileRows = kNf4BlockValues;
constexpr int kRowLanes = kThreads / kLanes;
constexpr int kThreadRows = kTileRows / kRowLanes;
constexpr int64_t kMostBlocks = 1 << 16;

// The codes of N neighbors, as one word.
template <int kBytes>
struct CodeWord;
template <>
struct CodeWord<2> {
  using Type = uint16_t;
};
template <>
struct CodeWord<4> {
  using Type = uint32_t;
};
template <>
struct CodeWord<8> {
  using Type = uint64_t;
};

// A kind of matrix says, of (input, output): which codes there are, and what factor they have.
struct Nf4Kind {
  static constexpr int kCodesPerByte = 2;
  static constexpr bool kHasLevels = true;

  Nf4Parts of;
  Nf4Data from;

  __device__ int64_t first() const { return of.first_output; }
  __device__ int64_t end() const { return of.end; }
  __device__ int64_t inputs() const { return of.inputs; }
  __device__ int64_t outputs() const { return of.outputs; }
  __device__ const uint8_t* codes() const { return from.codes; }

  __device__ float Scale(int64_t input, int64_t output) const {
    const int p = PartOf(of, output);
    const Nf4Parts::Part& part = of.parts[p];
    const int64_t block = ((output - part.first_output) * of.inputs + input) / kNf4BlockValues;
    if (from.scales == nullptr) return from.float_scales[part.first_block + block];
    const float level = kDeviceScaleLevels.of[from.scales[part.first_block + block]];
    const float nested = from.nested[part.first_nested + block / kNf4NestedScales];
    return Nf4NestedScale(level, nested, from.offsets[of.first_part + p]);
  }
  // Returns what the scale multiplies: `codes` has the code in its lowest bits.
  template <typename Word>
  static __device__ float Factor(const float* levels, Word codes, int index) {
    return levels[static_cast<unsigned>(codes >> (4 * index)) & 15U];
  }
  __device__ float PlainFactor(int64_t input, int64_t output) const {
    const int64_t row_bytes = (of.outputs + 1) / 2;
    const uint8_t pair = from.codes[input * row_bytes + output / 2];
    return kDeviceLevels.of[(pair >> (4 * (output % 2))) & 15];
  }
};

struct Int8Kind {
  static constexpr int kCodesPerByte = 1;
  static constexpr bool kHasLevels = false;

  Int8Data from;

  __device__ int64_t first() const { return 0; }
  __device__ int64_t end() const { return from.outputs; }
  __device__ int64_t inputs() const { return from.inputs; }
  __device__ int64_t outputs() const { return from.outputs; }
  __device__ const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(from.codes); }

  __device__ float Scale(int64_t /*input*/, int64_t output) const {
    return __fdiv_rn(from.scales[output], 127.0F);
  }
  template <typename Word>
  static __device__ float Factor(const float* /*levels*/, Word codes, int index) {
    return static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(codes >> (8 * index))));
  }
  __device__ float PlainFactor(int64_t input, int64_t output) const {
    return static_cast<float>(from.codes[input * from.outputs + output]);
  }
};

// A block has a tile: kTileRows rows of one scale, and kLanes vectors of N columns. Its scales are
// computed once, a thread each.
template <typename T, int N, typename Kind>
__global__ void __launch_bounds__(kThreads) DequantizeTiles(const Kind matrix, T* values) {
  constexpr int kColumns = kLanes * N, kCodeBytes = N / Kind::kCodesPerByte;
  using Word = typename CodeWord<kCodeBytes>::Type;
  float* const levels = SharedMemory<float>();
  float* const scales = levels + kNf4CodeLevels;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tiles = (matrix.end() - matrix.first() + kColumns - 1) / kColumns;
  const int64_t row_tile = blockIdx.x / tiles;
  const int64_t row = row_tile * kTileRows;
  const int64_t column = matrix.first() + (blockIdx.x - row_tile * tiles) * kColumns;
  if (Kind::kHasLevels && thread < kNf4CodeLevels) levels[thread] = kDeviceLevels.of[thread];
  for (int c = thread; c < kColumns; c += kThreads) {
    scales[c] = column + c < matrix.end() ? matrix.Scale(row, column + c) : 0.0F;
  }
  __syncthreads();

  const int lane = thread % kLanes;
  const int64_t at = column + lane * N;
  if (at >= matrix.end()) return;
  const int64_t first_row = row + thread / kLanes;
  const int64_t row_bytes = matrix.outputs() / Kind::kCodesPerByte;
  const uint8_t* const codes = matrix.codes() + at / Kind::kCodesPerByte;
  Word words[kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const int64_t i = first_row + r * kRowLanes;
    if (i < matrix.inputs()) words[r] = *reinterpret_cast<const Word*>(codes + i * row_bytes);
  }
  float factors[N];
#pragma unroll
  for (int k = 0; k < N; k += 4) {
    float four[4];
    Load(scales + lane * N + k, four);
#pragma unroll
    for (int j = 0; j < 4; ++j) factors[k + j] = four[j];
  }
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const int64_t i = first_row + r * kRowLanes;
    if (i >= matrix.inputs()) return;
    float products[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      products[k] = __fmul_rn(Kind::Factor(levels, words[r], k), factors[k]);
    }
    Store(values + i * matrix.outputs() + at, products);
  }
}

// The values of any matrix, one by one.
template <typename T, typename Kind>
__global__ void __launch_bounds__(kThreads) DequantizePlain(const Kind matrix, T* values) {
  const int64_t columns = matrix.end() - matrix.first();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t v = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       v < matrix.inputs() * columns; v += stride) {
    const int64_t i = v / columns, o = matrix.first() + v - i * columns;
    values[i * matrix.outputs() + o] =
        FromFloat<T>(__fmul_rn(matrix.PlainFactor(i, o), matrix.Scale(i, o)));
  }
}

template <typename Kind>
cudaError_t LaunchDequantize(cudaStream_t stream, ElementType type, const Kind& matrix,
                             bool rows_share_scales, int64_t inputs, int64_t outputs, int64_t first,
                             int64_t end, const void* codes, void* values) {
  const auto vectors = [&](int width) {
    return rows_share_scales && outputs % width == 0 && first % width == 0 && end % width == 0 &&
           AlignedForVectors(codes, values);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    if constexpr (N > 1) {
      constexpr int kColumns = kLanes * N;
      const int64_t blocks =
          ((end - first + kColumns - 1) / kColumns) * ((inputs + kTileRows - 1) / kTileRows);
      return Launch(DequantizeTiles<T, N, Kind>, dim3(static_cast<unsigned>(blocks)),
                    dim3(kThreads), (kNf4CodeLevels + kColumns) * sizeof(float), stream, matrix,
                    static_cast<T*>(values));
    } else {
      const int64_t blocks =
          std::min((inputs * (end - first) + kThreads - 1) / kThreads, kMostBlocks);
      return Launch(DequantizePlain<T, Kind>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                    0, stream, matrix, static_cast<T*>(values));
    }
  });
}

}  // namespace

cudaError_t LaunchDequantizeNf4(cudaStream_t stream, ElementType type, const Nf4Parts& parts,
                                const Nf4Data& from, void* values) {
  return LaunchDequantize(stream, type, Nf4Kind{parts, from}, parts.inputs % kNf4BlockValues == 0,
                          parts.inputs, parts.outputs, parts.first_output, parts.end, from.codes,
                          values);
}

cudaError_t LaunchDequantizeInt8(cudaStream_t stream, ElementType type, const Int8Data& from,
                                 void* values) {
  return LaunchDequantize(stream, type, Int8Kind{from}, true, from.inputs, from.outputs, 0,
                          from.outputs, from.codes, values);
}

}  // namespace stagecoach::kernels
