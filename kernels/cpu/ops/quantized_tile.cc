#include "kernels/cpu/ops/quantized_tile.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/quantization_levels.h"

// This file is compiled without contraction (kernels/CMakeLists.txt): a fused multiply-add, which
// narrow processors do not have, would round once.
namespace stagecoach::kernels {
namespace {

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

}  // namespace

QuantizedTile::QuantizedTile(const QuantizedMatrix& matrix)
    : is_int8_(matrix.kind == Quantization::kInt8),
      // No group of 64 rows, from a multiple of 64 on, has rows of several blocks.
      scales_are_of_group_(is_int8_ || matrix.inputs % kNf4Block == 0),
      inputs_(matrix.inputs),
      layout_(matrix) {}

template <typename T>
void QuantizedTile::Expand(const std::byte* stored, const Range& rows, const Range& columns, T* to,
                           int64_t stride) const {
  alignas(64) std::array<float, kMostColumns> scales;
  for (int64_t i = rows.first; i < rows.first + rows.count; ++i, to += stride) {
    if (i == rows.first || i % kNf4Block == 0 || !scales_are_of_group_) {
      FillScales(stored, i, columns.first, columns.count, scales.data());
    }
    const std::byte* const row = stored + layout_.codes + i * layout_.code_row_bytes;
    if (is_int8_) {
      Int8Row(reinterpret_cast<const int8_t*>(row) + columns.first, scales.data(), columns.count,
              to);
    } else {
      Nf4Row(reinterpret_cast<const uint8_t*>(row) + columns.first / 2, scales.data(),
             columns.count, to);
    }
  }
}
template void QuantizedTile::Expand(const std::byte*, const Range&, const Range&, float*,
                                    int64_t) const;
template void QuantizedTile::Expand(const std::byte*, const Range&, const Range&, Bfloat16*,
                                    int64_t) const;

void QuantizedTile::FillScales(const std::byte* stored, int64_t row, int64_t first, int64_t n,
                               float* to) const {
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
      to[o - first] =
          part.nested == 0
              ? floats[part.first_block + block]
              : kNf4ScaleLevelTable.of[codes[block]] * nested[block / kNf4NestedBlock] + offsets[p];
    }
  }
}

}  // namespace stagecoach::kernels
