#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/linear/nf4_levels.cuh"
#include "kernels/cuda/ops/linear/quantized_rows_kernels.h"

// With g = lane / 4 and m = lane % 4, a lane multiplies kOwn neighboring outputs, starting at g
// times that, with the inputs 8 m to 8 m + 7 of each half of a group. For tensor cores a = w^T and
// b = x^T, so that c has two outputs of each g, and 8 rows; the order of inputs in a and b is free.
namespace stagecoach::kernels {
namespace {

constexpr int kGroup = static_cast<int>(kQuantizedRowsGroup);
static_assert(kGroup == kNf4BlockValues);
constexpr int kHalf = kGroup / 2;
constexpr int kUnit = 16;      // bytes that are copied at once
constexpr int kRowsWarps = 8;  // that a block has at most
constexpr int kStages = 4;     // groups of codes in shared memory, one of which is multiplied
constexpr int kTables = kNf4CodeLevels + kNf4ScaleLevels;  // floats of shared memory
// About the number of multiprocessors of a GPU: with fewer strips than that, they are made narrower.
constexpr int64_t kEnoughStrips = 128;

// ---- Weights. Of (input, output): which codes there are, and what factor they have.

template <int kOutputs>
struct Nf4Rows {
  static constexpr int kOwn = kOutputs;  // outputs of a lane
  static constexpr int kCodesPerByte = 2;
  static constexpr bool kScalesChange = true;  // from group to group
  using Word = std::conditional_t<kOwn == 8, uint32_t, uint16_t>;

  Nf4Parts of;
  Nf4Data from;

  __device__ int inputs() const { return static_cast<int>(of.inputs); }
  __device__ int64_t outputs() const { return of.outputs; }
  __device__ const uint8_t* codes() const { return from.codes; }

  // What one output's scales are computed from.
  struct Place {
    int64_t first_scale, first_block, first_nested;
    float offset;
  };
  __device__ Place PlaceOf(int64_t output) const {
    const int p = PartOf(of, output);
    const Nf4Parts::Part& part = of.parts[p];
    const int64_t block = (output - part.first_output) * (of.inputs / kGroup);
    return {part.first_block + block, block, part.first_nested,
            from.scales == nullptr ? 0.0F : from.offsets[of.first_part + p]};
  }
  struct Scale {
    float number;  // the scale, or the one that it is multiplied by
    uint8_t code;
  };
  __device__ Scale LoadScale(const Place& place, int group) const {
    if (from.scales == nullptr) return {from.float_scales[place.first_scale + group], 0};
    const int64_t nested = place.first_nested + (place.first_block + group) / kNf4NestedScales;
    return {from.nested[nested], from.scales[place.first_scale + group]};
  }
  __device__ float ScaleOf(const float* tables, const Place& place, const Scale& scale) const {
    if (from.scales == nullptr) return scale.number;
    return Nf4NestedScale(tables[kNf4CodeLevels + scale.code], scale.number, place.offset);
  }
  static __device__ void FillTables(float* tables) {
    for (int i = static_cast<int>(threadIdx.x); i < kTables; i += static_cast<int>(blockDim.x)) {
      tables[i] =
          i < kNf4CodeLevels ? kDeviceLevels.of[i] : kDeviceScaleLevels.of[i - kNf4CodeLevels];
    }
  }
  static __device__ float Factor(const float* tables, Word codes, int index) {
    return tables[(codes >> (4 * index)) & 15U];
  }
};

struct Int8Rows {
  static constexpr int kOwn = 4;
  static constexpr int kCodesPerByte = 1;
  static constexpr bool kScalesChange = false;
  using Word = uint32_t;

  Int8Data from;

  __device__ int inputs() const { return static_cast<int>(from.inputs); }
  __device__ int64_t outputs() const { return from.outputs; }
  __device__ const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(from.codes); }

  struct Place {
    int64_t output;
  };
  using Scale = float;
  __device__ Place PlaceOf(int64_t output) const { return {output}; }
  __device__ Scale LoadScale(const Place& place, int /*group*/) const {
    return from.scales[place.output];
  }
  __device__ float ScaleOf(const float* /*tables*/, const Place& /*place*/, Scale scale) const {
    return __fdiv_rn(scale, 127.0F);
  }
  static __device__ void FillTables(float* /*tables*/) {}
  // A conversion takes four times as long as this: the bits of 2^23 + 128 + code, which is exact.
  static __device__ float Factor(const float* /*tables*/, Word codes, int index) {
    const Word byte = ((codes ^ 0x80808080U) >> (8 * index)) & 0xFFU;
    return __uint_as_float(0x4B000000U | byte) - 8388736.0F;
  }
};

template <typename Weight>
struct Strip {
  static constexpr int kOwn = Weight::kOwn;
  static constexpr int kColumns = 8 * kOwn;
  static constexpr int kRowBytes = kColumns / Weight::kCodesPerByte;  // of codes of an input
  static constexpr int kRowUnits = kRowBytes / kUnit;
  static constexpr int kGroupBytes = kGroup * kRowBytes;
  static constexpr int kLaneColumns = kColumns / kWarp;  // whose scales a lane computes
  // Shared memory of a warp: the codes of kStages groups, whose place the sums take in the end; and
  // the scales of the group and of the next one.
  static constexpr int kRingBytes = kStages * kGroupBytes;
  static constexpr int kWarpBytes = kRingBytes + 2 * kColumns * static_cast<int>(sizeof(float));
  using Word = typename Weight::Word;

  // Where the codes of an input of a group are. Lanes read those of inputs that are 8 apart, which
  // thus are in different banks.
  static __device__ int PlaceOf(int input) { return (input ^ (input / 8 % 4)) * kRowBytes; }

  // Starts to copy a group of codes. What is beyond the last output becomes 0.
  static __device__ void Copy(const Weight& weight, int group, uint8_t* to) {
    const int64_t row_bytes = weight.outputs() / Weight::kCodesPerByte;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kRowBytes;
    const uint8_t* const from = weight.codes() + static_cast<int64_t>(group) * kGroup * row_bytes;
#pragma unroll
    for (int i = 0; i < kGroup * kRowUnits / kWarp; ++i) {
      const int unit = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      const int input = unit / kRowUnits, byte = unit % kRowUnits * kUnit;
      const bool reads = first + byte < row_bytes;
      CopyAsync(to + PlaceOf(input) + byte,
                reads ? from + input * row_bytes + first + byte : weight.codes(), reads);
    }
  }
  // Prefetches codes into the GPU's cache.
  static __device__ void BringToCache(const Weight& weight, int group) {
    const int64_t row_bytes = weight.outputs() / Weight::kCodesPerByte;
    const uint8_t* const from = weight.codes() + static_cast<int64_t>(group) * kGroup * row_bytes +
                                static_cast<int64_t>(blockIdx.x) * kRowBytes;
#pragma unroll
    for (int i = 0; i < kGroup / kWarp; ++i) {
      const int input = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      kernels::BringToCache(from + input * row_bytes);
    }
  }
};

// ---- Products of a lane: the sums of its outputs with rows of x.

// The weights of a group, by a lane.
template <typename Weight>
class LaneCodes {
 public:
  using Word = typename Weight::Word;

  // `codes` and `scales` are those of the strip.
  __device__ LaneCodes(const float* tables, const uint8_t* codes, const float* scales)
      : tables_(tables) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
    codes_ = codes + g * static_cast<int>(sizeof(Word));
#pragma unroll
    for (int k = 0; k < Weight::kOwn; k += 4) {
      float four[4];
      kernels::Load(scales + g * Weight::kOwn + k, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) scales_[k + j] = four[j];
    }
  }

  __device__ Word Load(int input) const {
    return *reinterpret_cast<const Word*>(codes_ + Strip<Weight>::PlaceOf(input));
  }
  __device__ float Value(Word word, int index) const {
    return __fmul_rn(Weight::Factor(tables_, word, index), scales_[index]);
  }

 private:
  const float* tables_;
  const uint8_t* codes_;  // of the lane's outputs of input 0
  float scales_[Weight::kOwn];
};

template <typename Weight, typename T, int kRows>
struct LaneSums;

template <typename Weight, int kRows>
struct LaneSums<Weight, float, kRows> {
  static constexpr int kOwn = Weight::kOwn;
  float sums[kOwn][kRows] = {};

  // `x`: the lane's inputs of the group, whose rows are `stride` apart.
  __device__ void Add(const LaneCodes<Weight>& codes, const float* x, int64_t stride, int rows) {
    constexpr int kFour = kVectorWidth<float>;
    const int first = static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int input = quarter / 2 * kHalf + quarter % 2 * kFour;
      float some[kRows][kFour] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < rows) kernels::Load(x + r * stride + input, some[r]);
      }
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const auto word = codes.Load(first + input + j);
#pragma unroll
        for (int k = 0; k < kOwn; ++k) {
          const float value = codes.Value(word, k);
#pragma unroll
          for (int r = 0; r < kRows; ++r) sums[k][r] = __fmaf_rn(some[r][j], value, sums[k][r]);
        }
      }
    }
  }
  // Stores what the lanes of the same outputs have together.
  __device__ void Store(float* to) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, m = lane % 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        float sum = sums[k][r];
        sum += FromLane(sum, 1);
        sum += FromLane(sum, 2);
        if (m == r % 4) to[r * Strip<Weight>::kColumns + g * kOwn + k] = sum;
      }
    }
  }
};

template <typename Weight, int kRows>
struct LaneSums<Weight, __nv_bfloat16, kRows> {
  static constexpr int kPairs = Weight::kOwn / 2, kTiles = kRows / 8;
  float sums[kTiles][kPairs][4] = {};

  __device__ void Add(const LaneCodes<Weight>& codes, const __nv_bfloat16* x, int64_t stride,
                      int rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, first = lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = 8 * tile + g;
        uint4 eight = {0, 0, 0, 0};
        if (row < rows) eight = *reinterpret_cast<const uint4*>(x + row * stride + half * kHalf);
        memcpy(words[tile], &eight, sizeof(eight));
      }
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int input = half * kHalf + first + 4 * step;
        typename Weight::Word w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = codes.Load(input + j);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const auto both = [&](int j, int k) {
            return PackPair(codes.Value(w[j], k), codes.Value(w[j + 1], k));
          };
          const uint32_t a[4] = {both(0, 2 * pair), both(0, 2 * pair + 1), both(2, 2 * pair),
                                 both(2, 2 * pair + 1)};
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            MultiplyTiles(sums[tile][pair], a, words[tile][2 * step], words[tile][2 * step + 1]);
          }
        }
      }
    }
  }
  __device__ void Store(float* to) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, m = lane % 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int place =
              (8 * tile + 2 * m + i) * Strip<Weight>::kColumns + g * Weight::kOwn + 2 * pair;
          *reinterpret_cast<float2*>(to + place) = {sums[tile][pair][i], sums[tile][pair][2 + i]};
        }
      }
    }
  }
};

// ---- A block.

// The scales of a strip's outputs in a group, some of which each lane computes.
template <typename Weight>
class StripScales {
 public:
  using Own = Strip<Weight>;

  __device__ explicit StripScales(const Weight& weight) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * Own::kColumns + Lane();
#pragma unroll
    for (int c = 0; c < Own::kLaneColumns; ++c) {
      exists_[c] = first + c * kWarp < weight.outputs();
      if (exists_[c]) places_[c] = weight.PlaceOf(first + c * kWarp);
    }
  }
  // Loads what the scales are computed from, long before they are needed.
  __device__ void Load(const Weight& weight, int group) {
#pragma unroll
    for (int c = 0; c < Own::kLaneColumns; ++c) {
      if (exists_[c]) loaded_[c] = weight.LoadScale(places_[c], group);
    }
  }
  __device__ void Store(const Weight& weight, const float* tables, float* to) const {
#pragma unroll
    for (int c = 0; c < Own::kLaneColumns; ++c) {
      to[Lane() + c * kWarp] = exists_[c] ? weight.ScaleOf(tables, places_[c], loaded_[c]) : 0.0F;
    }
  }

 private:
  static __device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  typename Weight::Place places_[Own::kLaneColumns];
  typename Weight::Scale loaded_[Own::kLaneColumns];
  bool exists_[Own::kLaneColumns];
};

// Writes the results of `rows` rows: the sums of all warps, which begin kWarpBytes apart.
template <typename Weight, typename T>
__device__ void Finish(const Weight& weight, const QuantizedRowsArguments& a,
                       const uint8_t* of_warps, int64_t first_row, int rows) {
  using Own = Strip<Weight>;
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < rows * Own::kColumns; i += threads) {
    const int64_t output = static_cast<int64_t>(blockIdx.x) * Own::kColumns + i % Own::kColumns;
    if (output >= weight.outputs()) continue;
    float sum = 0.0F;
    for (int warp = 0; warp < threads / kWarp; ++warp) {
      sum += reinterpret_cast<const float*>(of_warps + warp * Own::kWarpBytes)[i];
    }
    if (a.bias != nullptr) sum += ToFloat(static_cast<const T*>(a.bias)[output]);
    const int64_t row = first_row + i / Own::kColumns;
    static_cast<T*>(a.y)[row * weight.outputs() + output] = FromFloat<T>(sum);
  }
}

// Each warp has `warp_groups` groups, one after the other; the last one may have fewer.
template <typename Weight, typename T, int kRows>
__global__ void __launch_bounds__(kRowsWarps* kWarp)
    QuantizedRowsKernel(const Weight weight, const QuantizedRowsArguments a, int warp_groups) {
  using Own = Strip<Weight>;
  static_assert(Own::kRingBytes >= kRows * Own::kColumns * static_cast<int>(sizeof(float)));
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int begin = warp * warp_groups, end = min(weight.inputs() / kGroup, begin + warp_groups);
  LetNextKernelStart();
  if (a.starts_early) {
    for (int group = begin; group < end; ++group) Own::BringToCache(weight, group);
  }
  float* const tables = SharedMemory<float>();
  auto* const of_warps = reinterpret_cast<uint8_t*>(tables + kTables);
  uint8_t* const ring = of_warps + warp * Own::kWarpBytes;
  auto* const of_groups = reinterpret_cast<float*>(ring + Own::kRingBytes);
  Weight::FillTables(tables);
  WaitForEarlierKernels();

  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (begin + stage < end) Own::Copy(weight, begin + stage, ring + stage * Own::kGroupBytes);
    CommitCopies();
  }
  StripScales<Weight> scales(weight);
  scales.Load(weight, begin);
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), a.rows - first_row));
  const T* const x = static_cast<const T*>(a.x) + first_row * weight.inputs() + lane % 4 * 8;
  __syncthreads();  // the tables are there

  LaneSums<Weight, T, kRows> sums;
  for (int group = begin; group < end; ++group) {
    // Scales alternate between two places, so that none is overwritten that a lane still reads.
    const int turn = group - begin;
    float* const of_group = of_groups + (Weight::kScalesChange ? turn % 2 * Own::kColumns : 0);
    if (turn == 0 || Weight::kScalesChange) scales.Store(weight, tables, of_group);
    WaitForCopies<kStages - 2>();
    __syncwarp();  // now the group is there, and the one before it has been read
    const int next = group + kStages - 1;
    if (next < end) {
      Own::Copy(weight, next, ring + (turn + kStages - 1) % kStages * Own::kGroupBytes);
    }
    CommitCopies();
    if (Weight::kScalesChange && group + 1 < end) scales.Load(weight, group + 1);
    const LaneCodes<Weight> codes(tables, ring + turn % kStages * Own::kGroupBytes, of_group);
    sums.Add(codes, x + group * kGroup, weight.inputs(), rows);
  }
  __syncwarp();  // all codes have been read
  sums.Store(reinterpret_cast<float*>(ring));
  __syncthreads();
  Finish<Weight, T>(weight, a, of_warps, first_row, rows);
}

template <typename Weight, typename T, int kRows>
cudaError_t LaunchRowsOf(cudaStream_t stream, const Weight& weight, int64_t inputs, int64_t outputs,
                         const QuantizedRowsArguments& a) {
  using Own = Strip<Weight>;
  const auto quotient = [](int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; };
  const int64_t groups = inputs / kGroup, warp_groups = quotient(groups, kRowsWarps);
  const int64_t warps = quotient(groups, warp_groups);
  const size_t shared_bytes =
      kTables * sizeof(float) + static_cast<size_t>(warps * Own::kWarpBytes);
  return LaunchEarly(a.starts_early, QuantizedRowsKernel<Weight, T, kRows>,
                     dim3(static_cast<unsigned>(quotient(outputs, Own::kColumns)),
                          static_cast<unsigned>(quotient(a.rows, kRows))),
                     dim3(static_cast<unsigned>(warps * kWarp)), shared_bytes, stream, weight, a,
                     static_cast<int>(warp_groups));
}

template <typename Weight>
cudaError_t LaunchRows(cudaStream_t stream, ElementType type, const Weight& weight, int64_t inputs,
                       int64_t outputs, const QuantizedRowsArguments& a) {
  const auto launch = [&](auto element, auto rows) {
    return LaunchRowsOf<Weight, decltype(element), decltype(rows)::value>(stream, weight, inputs,
                                                                          outputs, a);
  };
  if (type == ElementType::kBfloat16) {
    return a.rows <= 8 ? launch(__nv_bfloat16{}, std::integral_constant<int, 8>())
                       : launch(__nv_bfloat16{}, std::integral_constant<int, 16>());
  }
  return a.rows == 1   ? launch(float{}, std::integral_constant<int, 1>())
         : a.rows <= 4 ? launch(float{}, std::integral_constant<int, 4>())
                       : launch(float{}, std::integral_constant<int, 8>());
}

}  // namespace

cudaError_t LaunchNf4Rows(cudaStream_t stream, ElementType type, const Nf4Parts& parts,
                          const Nf4Data& from, const QuantizedRowsArguments& arguments) {
  const auto launch = [&](const auto& weight) {
    return LaunchRows(stream, type, weight, parts.inputs, parts.outputs, arguments);
  };
  const bool has_enough = parts.outputs >= kEnoughStrips * Strip<Nf4Rows<8>>::kColumns;
  return has_enough ? launch(Nf4Rows<8>{parts, from}) : launch(Nf4Rows<4>{parts, from});
}

cudaError_t LaunchInt8Rows(cudaStream_t stream, ElementType type, const Int8Data& from,
                           const QuantizedRowsArguments& arguments) {
  return LaunchRows(stream, type, Int8Rows{from}, from.inputs, from.outputs, arguments);
}

}  // namespace stagecoach::kernels
