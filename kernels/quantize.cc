// The contents of quantized matrices. Each operation is rounded by itself: this file is compiled
// without contraction (kernels/CMakeLists.txt).
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/quantized_matrix.h"

namespace stagecoach::kernels {
namespace {

// ---- Access.

// What is stored of a matrix, by the layout's names. Byte is const or not.
template <typename Byte>
struct Stored {
  Stored(const QuantizedMatrix& matrix, absl::Span<Byte> bytes)
      : layout(matrix), data(bytes.data()) {}

  // Elements have any alignment.
  template <typename T>
  T Get(int64_t section, int64_t index) const {
    T value;
    std::memcpy(&value, data + section + index * int64_t{sizeof(T)}, sizeof(T));
    return value;
  }
  template <typename T>
  void Set(int64_t section, int64_t index, T value) const {
    std::memcpy(data + section + index * int64_t{sizeof(T)}, &value, sizeof(T));
  }
  Byte* code_row(int64_t input) const {
    return data + layout.codes + input * layout.code_row_bytes;
  }

  const QuantizedLayout layout;
  Byte* const data;
};

// Some outputs of a part of NF4, and some or all of their inputs: whole blocks, and as few rows and
// columns as can be, for the cache. Their codes are [outputs][inputs].
struct Tile {
  int64_t first_output, outputs;
  int64_t first_input, inputs;
  int64_t first_block;     // of the part
  int64_t skipped_blocks;  // of an output, which are in other tiles

  int64_t size() const { return outputs * inputs; }
  // Returns the block of the part that begins with the tile's code at this index.
  int64_t block(int64_t index) const {
    return first_block + index / kNf4Block + index / inputs * skipped_blocks;
  }
  int64_t block_size(int64_t index) const { return std::min(kNf4Block, size() - index); }
};

template <typename Work>
void ForEachTile(int64_t inputs, const QuantizedLayout::Part& part, Work work) {
  // 64 outputs end with a whole block, whatever the inputs are.
  constexpr int64_t kOutputs = kNf4Block;
  const int64_t tile_inputs = inputs % kNf4Block == 0 ? kNf4Block : inputs;
  for (int64_t input = 0; input < inputs; input += tile_inputs) {
    for (int64_t done = 0; done < part.outputs; done += kOutputs) {
      work(Tile{part.first_output + done, std::min(kOutputs, part.outputs - done), input,
                tile_inputs, (done * inputs + input) / kNf4Block,
                (inputs - tile_inputs) / kNf4Block});
    }
  }
}

void StoreCodes(const Stored<std::byte>& to, const Tile& tile, const uint8_t* codes) {
  const int64_t begin = tile.first_output, end = begin + tile.outputs;
  for (int64_t i = 0; i < tile.inputs; ++i) {
    std::byte* const row = to.code_row(tile.first_input + i);
    const auto code = [&](int64_t o) { return std::byte{codes[(o - begin) * tile.inputs + i]}; };
    int64_t o = begin;
    if (o % 2 == 1) {
      row[o / 2] = (row[o / 2] & std::byte{0x0F}) | code(o) << 4;
      ++o;
    }
    for (; o + 2 <= end; o += 2) row[o / 2] = code(o) | code(o + 1) << 4;
    if (o < end) row[o / 2] = (row[o / 2] & std::byte{0xF0}) | code(o);
  }
}

void LoadCodes(const Stored<const std::byte>& from, const Tile& tile, uint8_t* codes) {
  for (int64_t i = 0; i < tile.inputs; ++i) {
    const std::byte* const row = from.code_row(tile.first_input + i);
    for (int64_t k = 0; k < tile.outputs; ++k) {
      const int64_t o = tile.first_output + k;
      codes[k * tile.inputs + i] = std::to_integer<uint8_t>(row[o / 2] >> (4 * (o % 2))) & 0x0F;
    }
  }
}

// ---- Rounding.

// Returns the numbers halfway between levels: the code of x is the number of those below x.
template <size_t kCount>
std::array<float, kCount - 1> Midpoints(const std::array<float, kCount>& levels) {
  std::array<float, kCount - 1> midpoints;
  for (size_t i = 0; i + 1 < kCount; ++i) midpoints[i] = (levels[i] + levels[i + 1]) / 2.0F;
  return midpoints;
}

// Returns the bits of a float without its sign: such numbers compare like their bits, which
// compilers do in vectors.
int32_t Magnitude(float value) { return std::bit_cast<int32_t>(value) & 0x7FFFFFFF; }

float LargestMagnitude(const float* values, int64_t n) {
  int32_t largest = 0;
  for (int64_t j = 0; j < n; ++j) largest = std::max(largest, Magnitude(values[j]));
  return std::bit_cast<float>(largest);
}

// Returns 1 over the largest magnitude of a block, or a finite number if that is 0.
float Inverse(float largest) { return 1.0F / std::max(largest, 1e-38F); }

// Writes the codes of a block; returns its largest magnitude.
float QuantizeBlock(const float* values, int64_t n, uint8_t* codes) {
  static const std::array<float, 15> midpoints = Midpoints(kNf4Levels);
  const float largest = LargestMagnitude(values, n), inverse = Inverse(largest);
  for (int64_t j = 0; j < n; ++j) {
    const float scaled = values[j] * inverse;
    int32_t code = 0;
    for (const float midpoint : midpoints) code += scaled > midpoint ? 1 : 0;
    codes[j] = static_cast<uint8_t>(code);
  }
  return largest;
}

// Stores what the codes of a part are multiplied by: the largest magnitudes of its blocks, in 8
// bits each.
void StoreNestedScales(const Stored<std::byte>& to, int64_t part_index,
                       const std::vector<float>& scales) {
  static const std::array<float, 255> midpoints = Midpoints(Nf4ScaleLevels());
  const QuantizedLayout::Part& part = to.layout.parts[static_cast<size_t>(part_index)];
  const double sum = std::accumulate(scales.begin(), scales.end(), 0.0);
  const auto offset = static_cast<float>(sum / static_cast<double>(part.blocks));
  to.Set(to.layout.offsets, part_index, offset);
  std::vector<float> centered = scales;
  for (float& scale : centered) scale -= offset;
  for (int64_t first = 0; first < part.blocks; first += kNf4NestedBlock) {
    const int64_t n = std::min(kNf4NestedBlock, part.blocks - first);
    const float* const block = centered.data() + first;
    const float largest = LargestMagnitude(block, n), inverse = Inverse(largest);
    to.Set(to.layout.nested, part.first_nested + first / kNf4NestedBlock, largest);
    for (int64_t j = 0; j < n; ++j) {
      const auto code = std::lower_bound(midpoints.begin(), midpoints.end(), block[j] * inverse);
      to.Set(to.layout.scales, part.first_block + first + j,
             static_cast<uint8_t>(code - midpoints.begin()));
    }
  }
}

void QuantizeNf4Part(const Stored<std::byte>& to, const QuantizedMatrix& matrix, int64_t part_index,
                     const float* values) {
  const QuantizedLayout::Part& part = to.layout.parts[static_cast<size_t>(part_index)];
  std::vector<float> scales(static_cast<size_t>(part.blocks)), gathered;
  std::vector<uint8_t> codes;
  ForEachTile(matrix.inputs, part, [&](const Tile& tile) {
    gathered.resize(static_cast<size_t>(tile.size()));
    codes.resize(gathered.size());
    for (int64_t i = 0; i < tile.inputs; ++i) {
      const float* const row = values + (tile.first_input + i) * matrix.outputs + tile.first_output;
      float* const column = gathered.data() + i;
      for (int64_t k = 0; k < tile.outputs; ++k) column[k * tile.inputs] = row[k];
    }
    for (int64_t at = 0; at < tile.size(); at += kNf4Block) {
      scales[static_cast<size_t>(tile.block(at))] =
          QuantizeBlock(gathered.data() + at, tile.block_size(at), codes.data() + at);
    }
    StoreCodes(to, tile, codes.data());
  });
  if (matrix.kind == Quantization::kNf4) return StoreNestedScales(to, part_index, scales);
  for (int64_t b = 0; b < part.blocks; ++b) {
    to.Set(to.layout.scales, part.first_block + b, scales[static_cast<size_t>(b)]);
  }
}

void QuantizeInt8(const Stored<std::byte>& to, const QuantizedMatrix& matrix, const float* values) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const auto outputs = static_cast<size_t>(matrix.outputs);
  std::vector<int32_t> largest(outputs);
  for (int64_t i = 0; i < matrix.inputs; ++i) {
    const float* const row = values + i * matrix.outputs;
    for (size_t o = 0; o < outputs; ++o) largest[o] = std::max(largest[o], Magnitude(row[o]));
  }
  std::vector<float> factors(outputs);
  for (size_t o = 0; o < outputs; ++o) {
    const auto scale = std::bit_cast<float>(largest[o]);
    to.Set(to.layout.scales, static_cast<int64_t>(o), scale);
    factors[o] = 127.0F / std::max(scale, 1e-36F);  // a finite number if that is 0
  }
  for (int64_t i = 0; i < matrix.inputs; ++i) {
    const float* const row = values + i * matrix.outputs;
    std::byte* const codes = to.code_row(i);
    for (size_t o = 0; o < outputs; ++o) {
      const float shifted = row[o] * factors[o] + kRound;
      codes[o] =
          static_cast<std::byte>(std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound));
    }
  }
}

// Returns what the codes of each block of a part are multiplied by.
std::vector<float> LoadScales(const Stored<const std::byte>& from, int64_t part_index) {
  const QuantizedLayout& layout = from.layout;
  const QuantizedLayout::Part& part = layout.parts[static_cast<size_t>(part_index)];
  std::vector<float> scales(static_cast<size_t>(part.blocks));
  for (int64_t b = 0; b < part.blocks; ++b) {
    float& scale = scales[static_cast<size_t>(b)];
    if (part.nested == 0) {
      scale = from.Get<float>(layout.scales, part.first_block + b);
      continue;
    }
    const auto code = from.Get<uint8_t>(layout.scales, part.first_block + b);
    const auto nested = from.Get<float>(layout.nested, part.first_nested + b / kNf4NestedBlock);
    scale = Nf4ScaleLevels()[code] * nested + from.Get<float>(layout.offsets, part_index);
  }
  return scales;
}

void DequantizeNf4Part(const Stored<const std::byte>& from, const QuantizedMatrix& matrix,
                       int64_t part_index, float* values) {
  const QuantizedLayout::Part& part = from.layout.parts[static_cast<size_t>(part_index)];
  const std::vector<float> scales = LoadScales(from, part_index);
  for (int64_t i = 0; i < matrix.inputs; ++i) {
    const std::byte* const row = from.code_row(i);
    float* const to = values + i * matrix.outputs;
    for (int64_t k = 0; k < part.outputs; ++k) {
      const int64_t o = part.first_output + k;
      const auto code = std::to_integer<size_t>(row[o / 2] >> (4 * (o % 2))) & 0x0F;
      to[o] = kNf4Levels[code] * scales[static_cast<size_t>((k * matrix.inputs + i) / kNf4Block)];
    }
  }
}

void DequantizeInt8(const Stored<const std::byte>& from, const QuantizedMatrix& matrix,
                    float* values) {
  std::vector<float> factors(static_cast<size_t>(matrix.outputs));
  for (int64_t o = 0; o < matrix.outputs; ++o) {
    factors[static_cast<size_t>(o)] = from.Get<float>(from.layout.scales, o) / 127.0F;
  }
  for (int64_t i = 0; i < matrix.inputs; ++i) {
    const std::byte* const row = from.code_row(i);
    float* const to = values + i * matrix.outputs;
    for (int64_t o = 0; o < matrix.outputs; ++o) {
      to[o] = static_cast<float>(static_cast<int8_t>(row[o])) * factors[static_cast<size_t>(o)];
    }
  }
}

}  // namespace

void Quantize(const QuantizedMatrix& matrix, absl::Span<const float> values,
              absl::Span<std::byte> stored) {
  const Stored<std::byte> to(matrix, stored);
  std::memset(to.data, 0, static_cast<size_t>(to.layout.bytes));
  if (matrix.kind == Quantization::kInt8) return QuantizeInt8(to, matrix, values.data());
  for (int64_t p = 0; p < std::ssize(to.layout.parts); ++p) {
    QuantizeNf4Part(to, matrix, p, values.data());
  }
}

void Dequantize(const QuantizedMatrix& matrix, absl::Span<const std::byte> stored,
                absl::Span<float> values) {
  const Stored<const std::byte> from(matrix, stored);
  if (matrix.kind == Quantization::kInt8) return DequantizeInt8(from, matrix, values.data());
  for (int64_t p = 0; p < std::ssize(from.layout.parts); ++p) {
    DequantizeNf4Part(from, matrix, p, values.data());
  }
}

// ---- The form of bitsandbytes. A block's codes are in bytes of their own.

void StorePart(const QuantizedMatrix& matrix, int part, const BitsAndBytesPart& from,
               absl::Span<std::byte> stored) {
  const Stored<std::byte> to(matrix, stored);
  const QuantizedLayout::Part& place = to.layout.parts[static_cast<size_t>(part)];
  const auto store = [&](int64_t section, int64_t first, const auto& numbers) {
    std::memcpy(to.data + section + first * int64_t{sizeof(numbers[0])}, numbers.data(),
                numbers.size() * sizeof(numbers[0]));
  };
  if (matrix.kind == Quantization::kInt8) {
    for (int64_t i = 0; i < matrix.inputs; ++i) {
      std::byte* const row = to.code_row(i) + place.first_output;
      for (int64_t o = 0; o < place.outputs; ++o) {
        row[o] = std::byte{from.codes[static_cast<size_t>(o * matrix.inputs + i)]};
      }
    }
    return store(to.layout.scales, place.first_output, from.float_absmax);
  }
  std::vector<uint8_t> codes;
  ForEachTile(matrix.inputs, place, [&](const Tile& tile) {
    codes.resize(static_cast<size_t>(tile.size()));
    for (int64_t at = 0; at < tile.size(); at += kNf4Block) {
      const uint8_t* const pairs = from.codes.data() + tile.block(at) * (kNf4Block / 2);
      uint8_t* const block = codes.data() + at;
      const int64_t n = tile.block_size(at);
      for (int64_t j = 0; j < n; ++j) {
        block[j] = (pairs[j / 2] >> (j % 2 == 0 ? 4 : 0)) & 0x0F;
      }
    }
    StoreCodes(to, tile, codes.data());
  });
  if (matrix.kind == Quantization::kNf4Single) {
    return store(to.layout.scales, place.first_block, from.float_absmax);
  }
  store(to.layout.scales, place.first_block, from.absmax);
  store(to.layout.nested, place.first_nested, from.nested_absmax);
  to.Set(to.layout.offsets, part, from.offset);
}

BitsAndBytesPart LoadPart(const QuantizedMatrix& matrix, int part,
                          absl::Span<const std::byte> stored) {
  const Stored<const std::byte> from(matrix, stored);
  const QuantizedLayout::Part& place = from.layout.parts[static_cast<size_t>(part)];
  BitsAndBytesPart to;
  const int64_t elements = place.outputs * matrix.inputs;
  const auto load = [&](int64_t section, int64_t first, int64_t count, auto& numbers) {
    numbers.resize(static_cast<size_t>(count));
    std::memcpy(numbers.data(), from.data + section + first * int64_t{sizeof(numbers[0])},
                numbers.size() * sizeof(numbers[0]));
  };
  if (matrix.kind == Quantization::kInt8) {
    to.codes.resize(static_cast<size_t>(elements));
    for (int64_t i = 0; i < matrix.inputs; ++i) {
      const std::byte* const row = from.code_row(i) + place.first_output;
      for (int64_t o = 0; o < place.outputs; ++o) {
        to.codes[static_cast<size_t>(o * matrix.inputs + i)] = std::to_integer<uint8_t>(row[o]);
      }
    }
    load(from.layout.scales, place.first_output, place.outputs, to.float_absmax);
    return to;
  }
  to.codes.resize(static_cast<size_t>((elements + 1) / 2));
  std::vector<uint8_t> codes;
  ForEachTile(matrix.inputs, place, [&](const Tile& tile) {
    codes.assign(static_cast<size_t>(tile.size() + 1), 0);  // a last one without a neighbor gets 0
    LoadCodes(from, tile, codes.data());
    for (int64_t at = 0; at < tile.size(); at += kNf4Block) {
      uint8_t* const pairs = to.codes.data() + tile.block(at) * (kNf4Block / 2);
      const uint8_t* const block = codes.data() + at;
      const int64_t n = tile.block_size(at);
      for (int64_t j = 0; j < n; j += 2) {
        pairs[j / 2] = static_cast<uint8_t>(block[j] << 4 | block[j + 1]);
      }
    }
  });
  if (matrix.kind == Quantization::kNf4Single) {
    load(from.layout.scales, place.first_block, place.blocks, to.float_absmax);
    return to;
  }
  load(from.layout.scales, place.first_block, place.blocks, to.absmax);
  load(from.layout.nested, place.first_nested, place.nested, to.nested_absmax);
  to.offset = from.Get<float>(from.layout.offsets, part);
  return to;
}

}  // namespace stagecoach::kernels
