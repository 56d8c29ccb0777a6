#include "kernels/ops/dequantize.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/quantization_levels.h"

// This file is compiled without contraction (kernels/CMakeLists.txt): a fused multiply-add, which
// narrow processors do not have, would round once.
namespace stagecoach::kernels {
namespace {

constexpr int64_t kTileRows = 64;
constexpr int64_t kTileColumns = 1024;

// ---- The levels of codes, in pairs: the lower half of a byte is the first.

// Both levels of each byte.
struct LevelPairs {
  constexpr LevelPairs() {
    for (size_t byte = 0; byte < 256; ++byte) {
      of[byte] = {kNf4LevelTable.of[byte & 0x0F], kNf4LevelTable.of[byte >> 4]};
    }
  }
  std::array<std::array<float, 2>, 256> of = {};
};

void PlainLevelsOf(const uint8_t* codes, int64_t bytes, float* levels) {
  static constexpr LevelPairs kPairs;
  for (int64_t b = 0; b < bytes; ++b) {
    std::memcpy(levels + 2 * b, kPairs.of[codes[b]].data(), 2 * sizeof(float));
  }
}

// Writes the levels of both codes of each byte. In lanes of 64 bits with a byte each, b | b << 28
// has the lower code in the lowest bits of the lower half, and the upper code in those of the upper
// half.
void LevelsOf(const uint8_t* codes, int64_t bytes, float* levels) {
  int64_t done = 0;
#if defined(__AVX512F__)
  // The forms with a mask, of all lanes: g++ 12 warns of the others, whose header leaves a variable
  // uninitialized.
  const __m512 table = _mm512_loadu_ps(kNf4LevelTable.of);
  for (; done + 8 <= bytes; done += 8) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + done));
    const __m512i wide = _mm512_maskz_cvtepu8_epi64(0xFF, packed);
    const __m512i indices = _mm512_or_si512(wide, _mm512_maskz_slli_epi64(0xFF, wide, 28));
    _mm512_storeu_ps(levels + 2 * done, _mm512_maskz_permutexvar_ps(0xFFFF, indices, table));
  }
#elif defined(__AVX2__)
  const __m256 low = _mm256_loadu_ps(kNf4LevelTable.of);
  const __m256 high = _mm256_loadu_ps(kNf4LevelTable.of + 8);
  for (; done + 4 <= bytes; done += 4) {
    int32_t packed;
    std::memcpy(&packed, codes + done, sizeof(packed));
    const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(packed));
    const __m256i indices = _mm256_or_si256(wide, _mm256_slli_epi64(wide, 28));
    // The sign of a lane chooses.
    const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(indices, 28));
    _mm256_storeu_ps(levels + 2 * done,
                     _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, indices),
                                      _mm256_permutevar8x32_ps(high, indices), is_high));
  }
#endif
  PlainLevelsOf(codes + done, bytes - done, levels + 2 * done);
}

template <typename T>
void Nf4Row(const uint8_t* codes, const float* scales, int64_t n, T* __restrict to) {
  constexpr int64_t kAtOnce = 128;
  alignas(64) std::array<float, kAtOnce> levels;
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, n - first);
    LevelsOf(codes + first / 2, (count + 1) / 2, levels.data());
    const float* const level = levels.data();
    for (int64_t k = 0; k < count; ++k) to[first + k] = level[k] * scales[first + k];
  }
}

template <typename T>
void Int8Row(const int8_t* codes, const float* scales, int64_t n, T* __restrict to) {
  for (int64_t k = 0; k < n; ++k) to[k] = static_cast<float>(codes[k]) * scales[k];
}

template <typename T>
class CpuDequantize final : public DequantizeOp {
 public:
  explicit CpuDequantize(const QuantizedMatrix& matrix)
      : is_int8_(matrix.kind == Quantization::kInt8),
        inputs_(matrix.inputs),
        outputs_(matrix.outputs),
        layout_(matrix),
        row_tiles_(inputs_, kTileRows),
        column_tiles_(outputs_, kTileColumns),
        // No tile has rows of several blocks.
        scales_are_of_tile_(is_int8_ || inputs_ % kNf4Block == 0) {}

  absl::Status Run(Stream& stream, const Tensor& stored, const Tensor& values) override {
    const auto* const from = static_cast<const std::byte*>(stored.data);
    const int tiles = row_tiles_.count * column_tiles_.count;
    AsCpu(stream).ParallelFor(tiles, [&](int tile, int) {
      FillTile(from, tile / column_tiles_.count, tile % column_tiles_.count, Elements<T>(values));
    });
    return absl::OkStatus();
  }

 private:
  void FillTile(const std::byte* stored, int row_tile, int column_tile, T* values) const {
    alignas(64) std::array<float, kTileColumns> scales;
    const int64_t first = column_tiles_.begin(column_tile);
    const int64_t n = column_tiles_.length(column_tile);
    const int64_t begin = row_tiles_.begin(row_tile);
    for (int64_t i = begin; i < begin + row_tiles_.length(row_tile); ++i) {
      if (i == begin || !scales_are_of_tile_) FillScales(stored, i, first, n, scales.data());
      const std::byte* const row = stored + layout_.codes + i * layout_.code_row_bytes;
      T* const to = values + i * outputs_ + first;
      if (is_int8_) {
        Int8Row(reinterpret_cast<const int8_t*>(row) + first, scales.data(), n, to);
      } else {
        Nf4Row(reinterpret_cast<const uint8_t*>(row) + first / 2, scales.data(), n, to);
      }
    }
  }

  // Computes the factors of n outputs' codes in a row.
  void FillScales(const std::byte* stored, int64_t row, int64_t first, int64_t n, float* to) const {
    const auto* const floats = reinterpret_cast<const float*>(stored + layout_.scales);
    if (is_int8_) {
      for (int64_t k = 0; k < n; ++k) to[k] = floats[first + k] / 127.0F;
      return;
    }
    for (size_t p = 0; p < layout_.parts.size(); ++p) {
      const QuantizedLayout::Part& part = layout_.parts[p];
      const int64_t begin = std::max(first, part.first_output);
      const int64_t end = std::min(first + n, part.first_output + part.outputs);
      if (begin >= end) continue;
      const float* const nested =
          reinterpret_cast<const float*>(stored + layout_.nested) + part.first_nested;
      const auto* const codes =
          reinterpret_cast<const uint8_t*>(stored + layout_.scales) + part.first_block;
      const auto* const offsets = reinterpret_cast<const float*>(stored + layout_.offsets);
      int64_t value = (begin - part.first_output) * inputs_ + row;
      for (int64_t o = begin; o < end; ++o, value += inputs_) {
        const int64_t block = value / kNf4Block;
        to[o - first] = part.nested == 0 ? floats[part.first_block + block]
                                         : kNf4ScaleLevelTable.of[codes[block]] *
                                                   nested[block / kNf4NestedBlock] +
                                               offsets[p];
      }
    }
  }

  const bool is_int8_;
  const int64_t inputs_, outputs_;
  const QuantizedLayout layout_;
  const Tiling row_tiles_, column_tiles_;
  const bool scales_are_of_tile_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DequantizeOp>> CreateOnCpu(const DequantizeShape& shape,
                                                          Device& device) {
  RETURN_IF_ERROR(CheckQuantizedMatrix(shape.matrix, kMaxExtent));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<DequantizeOp> {
    return std::make_unique<CpuDequantize<T>>(shape.matrix);
  });
}

}  // namespace stagecoach::kernels
