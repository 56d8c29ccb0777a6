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
#include "kernels/cuda/ops/linear/quantized_rows_kernels.h"
#include "kernels/cuda/ops/linear/quantized_weights.cuh"

// With g = lane / 4 and m = lane % 4, a lane multiplies kOwn neighboring outputs, starting at g
// times that, with the inputs 8 m to 8 m + 7 of each half of a group. For tensor cores a = w^T and
// b = x^T, so that c has two outputs of each g, and 8 rows; the order of inputs in a and b is free.
namespace stagecoach::kernels {
namespace {

constexpr int kGroup = static_cast<int>(kQuantizedRowsGroup);
static_assert(kGroup == kNf4BlockValues);
constexpr int kEight = 8;  // inputs that a lane has side by side
constexpr int kHalf = kGroup / 2;
constexpr int kUnit = 16;   // bytes that are copied at once
constexpr int kStages = 3;  // groups of codes in shared memory, one of which is multiplied
constexpr int kMostWarps = 16, kFewWarps = 4;  // of a block
constexpr int kSumThreads = 256;
// About half of the multiprocessors of a GPU, which have a block each: with no more blocks than
// that, strips are narrower.
constexpr int64_t kFewBlocks = 66;

template <typename Weight>
struct Strip {
  static constexpr int kOwn = Weight::kOwn;
  static constexpr int kColumns = 8 * kOwn;
  static constexpr int kRowBytes = kColumns / Weight::kCodesPerByte;  // of codes of an input
  static constexpr int kRowUnits = kRowBytes / kUnit;
  // Lanes read the codes of inputs that are kEight apart: a gap puts these into different banks.
  static constexpr int kEightBytes = kEight * kRowBytes + std::min(kRowBytes, 32);
  static constexpr int kGroupBytes = kGroup / kEight * kEightBytes;
  // Scales of a group: lanes store those of an output and eight groups into different banks.
  static constexpr int kScaleFloats = kColumns + 4;
  // Shared memory of a warp: the codes of kStages groups, whose place the sums take in the end; and
  // the scales of its groups.
  static constexpr int kRingBytes = kStages * kGroupBytes;
  static constexpr int kScaleGroups = Weight::kScalesChange ? kMostWarpGroups : 1;
  static constexpr int kWarpBytes =
      kRingBytes + kScaleGroups * kScaleFloats * static_cast<int>(sizeof(float));
  static constexpr int kTableBytes = Weight::kTableFloats * static_cast<int>(sizeof(float));
  using Word = typename Weight::Word;

  // Returns how many warps a block may have.
  static int Warps(int64_t block_shared_bytes) {
    int warps = kMostWarps;
    while (warps > kFewWarps && kTableBytes + warps * kWarpBytes > block_shared_bytes) warps /= 2;
    return warps;
  }

  // Starts to copy a group of codes, if it `exists`. What is beyond the last output becomes 0.
  static __device__ void Copy(const Weight& weight, int group, bool exists, uint8_t* to) {
    constexpr int kInputs = kWarp / kRowUnits;  // that are copied at once
    static_assert(kInputs % kEight == 0);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int input = lane / kRowUnits, byte = lane % kRowUnits * kUnit;
    const int64_t row_bytes = weight.outputs() / Weight::kCodesPerByte;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kRowBytes + byte;
    const bool reads = exists && first < row_bytes;
    const int64_t step = reads ? kInputs * row_bytes : 0;
    const uint8_t* from = weight.codes();
    if (reads) from += (static_cast<int64_t>(group) * kGroup + input) * row_bytes + first;
    to += input / kEight * kEightBytes + input % kEight * kRowBytes + byte;
#pragma unroll
    for (int i = 0; i < kGroup / kInputs; ++i) {
      CopyLineAsync(to + i * (kInputs / kEight) * kEightBytes, from, reads);
      from += step;
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
  __device__ LaneCodes(const typename Weight::Factors& factors, const uint8_t* codes,
                       const float* scales)
      : factors_(factors) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4;
    codes_ = codes + lane % 4 * Strip<Weight>::kEightBytes + g * static_cast<int>(sizeof(Word));
#pragma unroll
    for (int k = 0; k < Weight::kOwn; k += 4) {
      float four[4];
      kernels::Load(scales + g * Weight::kOwn + k, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) scales_[k + j] = four[j];
    }
  }

  // `input`: one of the eight that the lane has in a half.
  __device__ Word Load(int half, int input) const {
    return Weight::Factors::Prepared(*reinterpret_cast<const Word*>(
        codes_ + half * (kHalf / kEight) * Strip<Weight>::kEightBytes +
        input * Strip<Weight>::kRowBytes));
  }
  // Returns the values of outputs 2 `pair` and 2 `pair` + 1.
  __device__ float2 Pair(Word word, int pair) const {
    const float2 factors = factors_.Pair(word, pair);
    return {__fmul_rn(factors.x, scales_[2 * pair]), __fmul_rn(factors.y, scales_[2 * pair + 1])};
  }

 private:
  const typename Weight::Factors& factors_;
  const uint8_t* codes_;  // of the lane's outputs of its first input
  float scales_[Weight::kOwn];
};

template <typename Weight, typename T, int kRows>
struct LaneSums;

template <typename Weight, int kRows>
struct LaneSums<Weight, float, kRows> {
  static constexpr int kOwn = Weight::kOwn, kPairs = kOwn / 2;
  float sums[kOwn][kRows] = {};

  // The lane's inputs of a group.
  struct Inputs {
    const float* x;
    int64_t stride;  // from row to row
    int rows;
    __device__ void Load(const float* from, int64_t distance, int count) {
      x = from;
      stride = distance;
      rows = count;
    }
  };
  __device__ void Add(const LaneCodes<Weight>& codes, const Inputs& inputs) {
    constexpr int kFour = kVectorWidth<float>;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int half = quarter / 2, first = quarter % 2 * kFour;
      float some[kRows][kFour] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < inputs.rows) {
          kernels::Load(inputs.x + r * inputs.stride + half * kHalf + first, some[r]);
        }
      }
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const auto word = codes.Load(half, first + j);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const float2 both = codes.Pair(word, pair);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            sums[2 * pair][r] = __fmaf_rn(some[r][j], both.x, sums[2 * pair][r]);
            sums[2 * pair + 1][r] = __fmaf_rn(some[r][j], both.y, sums[2 * pair + 1][r]);
          }
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

  // The lane's inputs of a group, loaded long before they are needed.
  struct Inputs {
    uint32_t words[2][kTiles][4];
    __device__ void Load(const __nv_bfloat16* x, int64_t stride, int rows) {
      const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int row = 8 * tile + g;
          uint4 eight = {0, 0, 0, 0};
          if (row < rows) eight = *reinterpret_cast<const uint4*>(x + row * stride + half * kHalf);
          memcpy(words[half][tile], &eight, sizeof(eight));
        }
      }
    }
  };
  __device__ void Add(const LaneCodes<Weight>& codes, const Inputs& inputs) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        typename Weight::Word w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = codes.Load(half, 4 * step + j);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          float2 both[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) both[j] = codes.Pair(w[j], pair);
          const uint32_t a[4] = {PackPair(both[0].x, both[1].x), PackPair(both[0].y, both[1].y),
                                 PackPair(both[2].x, both[3].x), PackPair(both[2].y, both[3].y)};
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            MultiplyTiles(sums[tile][pair], a, inputs.words[half][tile][2 * step],
                          inputs.words[half][tile][2 * step + 1]);
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

template <typename T>
__device__ void StoreResult(const QuantizedRowsArguments& a, int64_t row, int64_t output,
                            int64_t outputs, float sum) {
  if (a.bias != nullptr) sum += ToFloat(static_cast<const T*>(a.bias)[output]);
  static_cast<T*>(a.y)[row * outputs + output] = FromFloat<T>(sum);
}

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
    const int64_t row = first_row + i / Own::kColumns;
    if (a.split.pieces == 1) {
      StoreResult<T>(a, row, output, weight.outputs(), sum);
    } else {
      a.partial_sums[(blockIdx.z * a.rows + row) * weight.outputs() + output] = sum;
    }
  }
}

template <typename Weight, typename T, int kRows>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    QuantizedRowsKernel(const Weight weight, const QuantizedRowsArguments a) {
  using Own = Strip<Weight>;
  using Sums = LaneSums<Weight, T, kRows>;
  static_assert(Own::kRingBytes >= kRows * Own::kColumns * static_cast<int>(sizeof(float)));
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int begin = (static_cast<int>(blockIdx.z) * a.split.warps + warp) * a.split.warp_groups;
  const int end = min(weight.inputs() / kGroup, begin + a.split.warp_groups);
  LetNextKernelStart();
  if (a.starts_early) {
    // What the first copies wait for; the others follow one another anyway.
    for (int group = begin; group < min(end, begin + kStages - 1); ++group) {
      Own::BringToCache(weight, group);
    }
  }
  float* const tables = SharedMemory<float>();
  auto* const of_warps = reinterpret_cast<uint8_t*>(tables + Weight::kTableFloats);
  uint8_t* const ring = of_warps + warp * Own::kWarpBytes;
  auto* const scales = reinterpret_cast<float*>(ring + Own::kRingBytes);
  Weight::FillTables(tables);
  WaitForEarlierKernels();

  for (int stage = 0; stage < kStages - 1; ++stage) {
    Own::Copy(weight, begin + stage, begin + stage < end, ring + stage * Own::kGroupBytes);
    CommitCopies();
  }
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), a.rows - first_row));
  const int64_t stride = weight.inputs();
  const T* const x = static_cast<const T*>(a.x) + first_row * stride + lane % 4 * kEight;
  typename Sums::Inputs inputs;
  if (begin < end) inputs.Load(x + begin * kGroup, stride, rows);
  __syncthreads();  // the tables are there
  if (begin < end)
    weight.template StoreScales<Own::kScaleFloats>(tables, begin, end - begin, scales);

  const typename Weight::Factors factors(tables);
  Sums sums;
  int stage = 0;
  for (int group = begin; group < end; ++group) {
    WaitForCopies<kStages - 2>();
    __syncwarp();  // now the group is there, and the one before it has been read
    // Without branches, so that all of it is done between the products.
    const int next = group + kStages - 1;
    Own::Copy(weight, next, next < end,
              ring + (stage == 0 ? kStages - 1 : stage - 1) * Own::kGroupBytes);
    CommitCopies();
    typename Sums::Inputs next_inputs;
    next_inputs.Load(x + min(group + 1, end - 1) * kGroup, stride, rows);
    const LaneCodes<Weight> codes(
        factors, ring + stage * Own::kGroupBytes,
        scales + (Weight::kScalesChange ? group - begin : 0) * Own::kScaleFloats);
    sums.Add(codes, inputs);
    inputs = next_inputs;
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  WaitForCopies<0>();  // they store zeros where groups would be that do not exist
  __syncwarp();        // all codes have been read
  sums.Store(reinterpret_cast<float*>(ring));
  __syncthreads();
  Finish<Weight, T>(weight, a, of_warps, first_row, rows);
}

// Adds the sums of pieces.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SumPieces(const QuantizedRowsArguments a, int64_t outputs) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (output >= outputs) return;
  const int64_t row = blockIdx.y, step = a.rows * outputs;
  float sum = 0.0F;
#pragma unroll 4
  for (int piece = 0; piece < a.split.pieces; ++piece) {
    sum += a.partial_sums[piece * step + row * outputs + output];
  }
  StoreResult<T>(a, row, output, outputs, sum);
}

int64_t Quotient(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

template <typename Weight, typename T, int kRows>
cudaError_t LaunchRowsOf(cudaStream_t stream, const Weight& weight, int64_t outputs,
                         const QuantizedRowsArguments& a) {
  using Own = Strip<Weight>;
  const size_t shared_bytes =
      static_cast<size_t>(Own::kTableBytes + a.split.warps * Own::kWarpBytes);
  const cudaError_t error = LaunchEarly(
      a.starts_early, QuantizedRowsKernel<Weight, T, kRows>,
      dim3(static_cast<unsigned>(Quotient(outputs, Own::kColumns)),
           static_cast<unsigned>(Quotient(a.rows, kRows)), static_cast<unsigned>(a.split.pieces)),
      dim3(static_cast<unsigned>(a.split.warps * kWarp)), shared_bytes, stream, weight, a);
  if (error != cudaSuccess || a.split.pieces == 1) return error;
  return LaunchEarly(
      a.starts_early, SumPieces<T>,
      dim3(static_cast<unsigned>(Quotient(outputs, kSumThreads)), static_cast<unsigned>(a.rows)),
      dim3(kSumThreads), 0, stream, a, outputs);
}

template <typename Weight>
cudaError_t LaunchRows(cudaStream_t stream, ElementType type, const Weight& weight, int64_t outputs,
                       const QuantizedRowsArguments& a) {
  const auto launch = [&](auto element, auto rows) {
    return LaunchRowsOf<Weight, decltype(element), decltype(rows)::value>(stream, weight, outputs,
                                                                          a);
  };
  if (type == ElementType::kBfloat16) {
    return a.rows <= 8 ? launch(__nv_bfloat16{}, std::integral_constant<int, 8>())
                       : launch(__nv_bfloat16{}, std::integral_constant<int, 16>());
  }
  if (a.rows == 1) return launch(float{}, std::integral_constant<int, 1>());
  if constexpr (Weight::kOwn == 8) {
    return launch(float{}, std::integral_constant<int, 4>());
  } else {
    return a.rows <= 4 ? launch(float{}, std::integral_constant<int, 4>())
                       : launch(float{}, std::integral_constant<int, 8>());
  }
}

// `Wide` and `Narrow`: the weight in strips of 64 outputs, and of 32.
template <typename Wide, typename Narrow>
QuantizedRowsSplit SplitOf(int64_t inputs, int64_t block_shared_bytes) {
  QuantizedRowsSplit split;
  split.warps = Strip<Wide>::Warps(block_shared_bytes);
  split.may_be_wide = split.warps > kFewWarps;
  if (!split.may_be_wide) split.warps = Strip<Narrow>::Warps(block_shared_bytes);
  const int64_t groups = inputs / kGroup;
  const int64_t pieces = Quotient(groups, split.warps * kMostWarpGroups);
  split.warp_groups = static_cast<int>(Quotient(groups, pieces * split.warps));
  split.pieces = static_cast<int>(pieces);
  if (pieces == 1) split.warps = static_cast<int>(Quotient(groups, split.warp_groups));
  return split;
}

// Sums of 64 outputs and 8 rows of float32 would not fit into registers.
bool IsWide(const QuantizedRowsArguments& a, ElementType type, int64_t outputs) {
  return a.split.may_be_wide && (type == ElementType::kBfloat16 || a.rows <= 4) &&
         Quotient(outputs, Strip<Nf4Rows<8>>::kColumns) * a.split.pieces > kFewBlocks;
}

}  // namespace

QuantizedRowsSplit SplitNf4Rows(int64_t inputs, int64_t block_shared_bytes) {
  return SplitOf<Nf4Rows<8>, Nf4Rows<4>>(inputs, block_shared_bytes);
}

QuantizedRowsSplit SplitInt8Rows(int64_t inputs, int64_t block_shared_bytes) {
  return SplitOf<Int8Rows<8>, Int8Rows<4>>(inputs, block_shared_bytes);
}

cudaError_t LaunchNf4Rows(cudaStream_t stream, ElementType type, const Nf4Parts& parts,
                          const Nf4Data& from, const QuantizedRowsArguments& a) {
  return IsWide(a, type, parts.outputs)
             ? LaunchRows(stream, type, Nf4Rows<8>{parts, from}, parts.outputs, a)
             : LaunchRows(stream, type, Nf4Rows<4>{parts, from}, parts.outputs, a);
}

cudaError_t LaunchInt8Rows(cudaStream_t stream, ElementType type, const Int8Data& from,
                           const QuantizedRowsArguments& a) {
  return IsWide(a, type, from.outputs)
             ? LaunchRows(stream, type, Int8Rows<8>{from}, from.outputs, a)
             : LaunchRows(stream, type, Int8Rows<4>{from}, from.outputs, a);
}

}  // namespace stagecoach::kernels
