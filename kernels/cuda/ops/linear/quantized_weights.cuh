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

// Most instructions of the products are those that make a factor of a code. So two NF4 codes, which
// are a byte, are looked up together: a byte permutation puts it where it is the row of the table.
// A row has the pair of levels once for each lane, so that lanes never wait for each other's banks.
template <int kOutputs>
struct Nf4Rows {
  static constexpr int kOwn = kOutputs;  // outputs of a lane
  static constexpr int kCodesPerByte = 2;
  static constexpr bool kScalesChange = true;  // from group to group
  static constexpr int kLevelFloats = 256 * 2 * kWarp;
  static constexpr int kTableFloats = kLevelFloats + kNf4ScaleLevels;  // of shared memory
  using Word = std::conditional_t<kOwn == 8, uint32_t, uint16_t>;

  Nf4Parts of;
  Nf4Data from;

  __device__ int inputs() const { return static_cast<int>(of.inputs); }
  __device__ int64_t outputs() const { return of.outputs; }
  __device__ const uint8_t* codes() const { return from.codes; }

  // What a scale is computed from.
  struct ScaleParts {
    float number;  // the scale, or the one that it is multiplied by
    float offset;
    uint8_t code;
  };
  __device__ ScaleParts LoadScale(int64_t output, int group) const {
    const int p = PartOf(of, output);
    const Nf4Parts::Part& part = of.parts[p];
    const uint32_t own = static_cast<uint32_t>(output - part.first_output);
    const int64_t block = static_cast<int64_t>(
        static_cast<uint64_t>(own) * (static_cast<uint32_t>(of.inputs) / kNf4BlockValues) +
        static_cast<uint32_t>(group));
    if (from.scales == nullptr) return {from.float_scales[part.first_block + block], 0.0F, 0};
    return {from.nested[part.first_nested + block / kNf4NestedScales],
            from.offsets[of.first_part + p], from.scales[part.first_block + block]};
  }
  __device__ float ScaleOf(const float* tables, const ScaleParts& scale) const {
    if (from.scales == nullptr) return scale.number;
    return Nf4NestedScale(tables[kLevelFloats + scale.code], scale.number, scale.offset);
  }
  static __device__ void FillTables(float* tables) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    auto* const pairs = reinterpret_cast<float4*>(tables);
    for (int i = thread; i < kLevelFloats / 4; i += threads) {
      const int byte = i / (kWarp / 2);
      const float first = kDeviceLevels.of[byte % kNf4CodeLevels];
      const float second = kDeviceLevels.of[byte / kNf4CodeLevels];
      pairs[i] = {first, second, first, second};
    }
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
  static constexpr bool kScalesChange = false;
  static constexpr int kTableFloats = 0;
  using Word = std::conditional_t<kOwn == 8, uint2, uint32_t>;

  Int8Data from;

  __device__ int inputs() const { return static_cast<int>(from.inputs); }
  __device__ int64_t outputs() const { return from.outputs; }
  __device__ const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(from.codes); }

  using ScaleParts = float;
  __device__ ScaleParts LoadScale(int64_t output, int /*group*/) const {
    return from.scales[output];
  }
  __device__ float ScaleOf(const float* /*tables*/, ScaleParts scale) const {
    return __fdiv_rn(scale, 127.0F);
  }
  static __device__ void FillTables(float* /*tables*/) {}

  // A conversion takes longer than this: the bits of 2^23 + 128 + code, which is exact.
  class Factors {
   public:
    __device__ explicit Factors(const float* /*tables*/) {}

    static __device__ uint32_t Prepared(uint32_t codes) { return codes ^ 0x80808080U; }
    static __device__ uint2 Prepared(uint2 codes) {
      return {Prepared(codes.x), Prepared(codes.y)};
    }
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
