#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_WEIGHTS_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_WEIGHTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/ops/linear/dequantize_kernels.h"
#include "kernels/cuda/ops/linear/nf4_levels.cuh"

// Weights that LaunchNf4Rows and LaunchInt8Rows multiply: what the codes and the scales of (input,
// output) are. A lane takes the codes of kOwn neighboring outputs at once, a Word, and makes two
// factors of them at a time, which it multiplies by the scales.
namespace stagecoach::kernels {

inline constexpr int kMostWarpGroups = 8;  // that a warp has

// Most instructions of the products are those that make a factor of a code. So two NF4 codes, which
// are a byte, are looked up together: a byte permutation puts it where it is the row of the table.
// A row has the pair of levels once for each lane, so that lanes never wait for each other's banks.
template <int kOutputs>
struct Nf4Rows {
  static constexpr int kOwn = kOutputs;  // outputs of a lane
  static constexpr int kCodesPerByte = 2;
  static constexpr bool kScalesChange = true;  // from group to group
  static constexpr int kColumns = 8 * kOwn;    // of a warp
  static constexpr int kLevelFloats = 256 * 2 * kWarp;
  static constexpr int kTableFloats = kLevelFloats + kNf4ScaleLevels;  // of shared memory
  using Word = std::conditional_t<kOwn == 8, uint32_t, uint16_t>;

  Nf4Parts of;
  Nf4Data from;

  __device__ int inputs() const { return static_cast<int>(of.inputs); }
  __device__ int64_t outputs() const { return of.outputs; }
  __device__ const uint8_t* codes() const { return from.codes; }

  // A warp stores the scales of its groups and of all outputs of its strip that exist: `kPitch`
  // floats from group to group. Neighboring lanes have those of an output, which are neighbors in
  // memory. A lane loads all that its own are computed from before it needs any of it, and without
  // a condition: what it has not, it has twice.
  template <int kPitch>
  __device__ void StoreScales(const float* tables, int first_group, int groups, float* to) const {
    constexpr int kStep = kWarp / kMostWarpGroups, kLaneScales = kColumns / kStep;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int column = lane / kMostWarpGroups, group = min(lane % kMostWarpGroups, groups - 1);
    const int64_t strip = static_cast<int64_t>(blockIdx.x) * kColumns;
    const int row_groups = inputs() / kNf4BlockValues;
    to += group * kPitch;
    for (int p = PartOf(of, strip); p < of.count && of.parts[p].first_output < strip + kColumns;
         ++p) {
      const Nf4Parts::Part& part = of.parts[p];
      const int64_t end = p + 1 < of.count ? of.parts[p + 1].first_output : of.outputs;
      const int first = static_cast<int>(part.first_output - strip);
      const int last = static_cast<int>(min(end - strip, int64_t{kColumns})) - 1;
      const auto column_of = [&](int k) { return max(min(column + k * kStep, last), first); };
      const int begin = first_group + group - first * row_groups;
      if (from.scales == nullptr) {
        const float* const scales = from.float_scales + part.first_block;
        float loaded[kLaneScales];
#pragma unroll
        for (int k = 0; k < kLaneScales; ++k) loaded[k] = scales[begin + column_of(k) * row_groups];
#pragma unroll
        for (int k = 0; k < kLaneScales; ++k) to[column_of(k)] = loaded[k];
        continue;
      }
      const uint8_t* const scales = from.scales + part.first_block;
      const float* const nested = from.nested + part.first_nested;
      const float offset = from.offsets[of.first_part + p];
      uint8_t codes[kLaneScales];
      float factors[kLaneScales];
#pragma unroll
      for (int k = 0; k < kLaneScales; ++k) {
        const unsigned block = static_cast<unsigned>(begin + column_of(k) * row_groups);
        codes[k] = scales[block];
        factors[k] = nested[block / kNf4NestedScales];
      }
#pragma unroll
      for (int k = 0; k < kLaneScales; ++k) {
        const float level = tables[kLevelFloats + codes[k]];
        to[column_of(k)] = Nf4NestedScale(level, factors[k], offset);
      }
    }
  }
  static __device__ void FillTables(float* tables) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    auto* const pairs = reinterpret_cast<float4*>(tables);
    // Not unrolled: the instructions would take longer than the waiting.
#pragma unroll 1
    for (int i = thread; i < kLevelFloats / 4; i += threads) {
      const int byte = i / (kWarp / 2);
      const float first = kDeviceLevels.of[byte % kNf4CodeLevels];
      const float second = kDeviceLevels.of[byte / kNf4CodeLevels];
      pairs[i] = {first, second, first, second};
    }
#pragma unroll 1
    for (int i = thread; i < kNf4ScaleLevels; i += threads) {
      tables[kLevelFloats + i] = kDeviceScaleLevels.of[i];
    }
  }

  class Factors {
   public:
    __device__ explicit Factors(const float* tables)
        : levels_(reinterpret_cast<const uint8_t*>(tables)), lane_(threadIdx.x % kWarp * 8) {}

    static __device__ Word Prepared(Word codes) { return codes; }
    // Returns the factors of outputs 2 `pair` and 2 `pair` + 1.
    __device__ float2 Pair(Word codes, int pair) const {
      const unsigned place = __byte_perm(codes, lane_, 0x5504U | static_cast<unsigned>(pair) << 4);
      return *reinterpret_cast<const float2*>(levels_ + place);
    }

   private:
    const uint8_t* levels_;
    const unsigned lane_;  // the lane's place in a row of 256 bytes
  };
};

template <int kOutputs>
struct Int8Rows {
  static constexpr int kOwn = kOutputs;
  static constexpr int kCodesPerByte = 1;
  static constexpr int kColumns = 8 * kOwn;
  static constexpr bool kScalesChange = false;
  static constexpr int kTableFloats = 0;
  using Word = std::conditional_t<kOwn == 8, uint2, uint32_t>;

  Int8Data from;

  __device__ int inputs() const { return static_cast<int>(from.inputs); }
  __device__ int64_t outputs() const { return from.outputs; }
  __device__ const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(from.codes); }

  template <int kPitch>
  __device__ void StoreScales(const float* /*tables*/, int /*first_group*/, int /*groups*/,
                              float* to) const {
    const int64_t strip = static_cast<int64_t>(blockIdx.x) * kColumns;
    for (int c = static_cast<int>(threadIdx.x) % kWarp; c < kColumns; c += kWarp) {
      if (strip + c < outputs()) to[c] = __fdiv_rn(from.scales[strip + c], 127.0F);
    }
  }
  static __device__ void FillTables(float* /*tables*/) {}

  // A conversion takes longer than this: the bits of 2^23 + 128 + code, which is exact.
  class Factors {
   public:
    __device__ explicit Factors(const float* /*tables*/) {}

    static __device__ uint32_t Prepared(uint32_t codes) { return codes ^ 0x80808080U; }
    static __device__ uint2 Prepared(uint2 codes) { return {Prepared(codes.x), Prepared(codes.y)}; }
    __device__ float2 Pair(uint32_t codes, int pair) const {
      const unsigned first = 2U * static_cast<unsigned>(pair);
      return {Factor(codes, first), Factor(codes, first + 1)};
    }
    __device__ float2 Pair(uint2 codes, int pair) const {
      return Pair(pair < 2 ? codes.x : codes.y, pair % 2);
    }

   private:
    static __device__ float Factor(uint32_t codes, unsigned byte) {
      return __uint_as_float(__byte_perm(codes, 0x4B000000U, 0x7440U | byte)) - 8388736.0F;
    }
  };
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_WEIGHTS_CUH_
