// The contents of quantized matrices. Each operation is rounded by itself: this file is compiled
// without contraction (kernels/CMakeLists.txt).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/quantized_matrix.h"

namespace stagecoach::kernels {
namespace {

// What is stored of a matrix, by the layout's names. Byte is const or not.
template <typename Byte>
struct Stored {
  Stored(const QuantizedMatrix& matrix, absl::Span<Byte> bytes)
      : layout(matrix), data(bytes.data()), is_int8(matrix.kind == Quantization::kInt8) {}

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
  const bool is_int8;
};

// Consecutive outputs of a part: as many as are done at a time, so that cache lines are used as a
// whole, and so that no block of NF4 is in two groups.
struct Group {
  int64_t first, outputs;
  int64_t first_block;
};

template <typename Work>
void ForEachGroup(int64_t inputs, const QuantizedLayout::Part& part, Work work) {
  const int64_t size = std::max<int64_t>(16, kNf4Block / std::gcd(inputs, kNf4Block));
  for (int64_t done = 0; done < part.outputs; done += size) {
    work(Group{part.first_output + done, std::min(size, part.outputs - done),
               part.first_block + done * inputs / kNf4Block});
  }
}

// ---- Codes of a group, [outputs][inputs] at `codes`, in the stored order.

void StoreInt8Codes(const Stored<std::byte>& to, int64_t inputs, const Group& group,
                    const uint8_t* codes) {
  for (int64_t i = 0; i < inputs; ++i) {
    std::byte* const row = to.code_row(i) + group.first;
    for (int64_t k = 0; k < group.outputs; ++k) row[k] = std::byte{codes[k * inputs + i]};
  }
}

void StoreNf4Codes(const Stored<std::byte>& to, int64_t inputs, const Group& group,
                   const uint8_t* codes) {
  const int64_t begin = group.first, end = group.first + group.outputs;
  for (int64_t i = 0; i < inputs; ++i) {
    std::byte* const row = to.code_row(i);
    const auto code = [&](int64_t o) { return std::byte{codes[(o - begin) * inputs + i]}; };
    int64_t o = begin;
    if (o % 2 == 1) {
      row[o / 2] = (row[o / 2] & std::byte{0x0F}) | code(o) << 4;
      ++o;
    }
    for (; o + 2 <= end; o += 2) row[o / 2] = code(o) | code(o + 1) << 4;
    if (o < end) row[o / 2] = (row[o / 2] & std::byte{0xF0}) | code(o);
  }
}

template <typename Byte>
void LoadNf4Codes(const Stored<Byte>& from, int64_t inputs, const Group& group, uint8_t* codes) {
  for (int64_t i = 0; i < inputs; ++i) {
    const std::byte* const row = from.code_row(i);
    for (int64_t k = 0; k < group.outputs; ++k) {
      const int64_t o = group.first + k;
      codes[k * inputs + i] = std::to_integer<uint8_t>(row[o / 2] >> (4 * (o % 2))) & 0x0F;
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

// As floats without their sign compare like their bits, the loop has no branches.
float LargestMagnitude(const float* values, int64_t n) {
  int32_t largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    largest = std::max(largest, std::bit_cast<int32_t>(values[j]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(largest);
}

// Returns 1 over the largest magnitude of a block, as bitsandbytes does for a block of zeros too.
float Inverse(float largest) { return 1.0F / std::max(largest, 1e-38F); }

// Writes the codes of a block of NF4; returns its largest magnitude.
float QuantizeNf4Block(const float* values, int64_t n, uint8_t* codes) {
  static const std::array<float, 15> midpoints = Midpoints(kNf4Levels);
  const float largest = LargestMagnitude(values, n), inverse = Inverse(largest);
  std::array<int32_t, kNf4Block> counts = {};
  std::array<float, kNf4Block> scaled;
  for (int64_t j = 0; j < n; ++j) scaled[static_cast<size_t>(j)] = values[j] * inverse;
  for (const float midpoint : midpoints) {
    for (size_t j = 0; j < counts.size(); ++j) counts[j] += scaled[j] > midpoint ? 1 : 0;
  }
  for (int64_t j = 0; j < n; ++j) {
    codes[j] = static_cast<uint8_t>(counts[static_cast<size_t>(j)]);
  }
  return largest;
}

// Writes the codes of one output of int8; returns its largest magnitude.
float QuantizeInt8Output(const float* values, int64_t n, uint8_t* codes) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float largest = LargestMagnitude(values, n);
  const float factor = 127.0F / std::max(largest, 1e-36F);
  for (int64_t j = 0; j < n; ++j) {
    const float shifted = values[j] * factor + kRound;
    codes[j] =
        static_cast<uint8_t>(std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound));
  }
  return largest;
}

// ---- Scales of NF4.

// Stores the largest magnitudes of a part's blocks in 8 bits each.
void StoreNestedScales(const Stored<std::byte>& to, size_t part_index,
                       const std::vector<float>& scales) {
  static const std::array<float, 255> midpoints = Midpoints(Nf4ScaleLevels());
  const QuantizedLayout::Part& part = to.layout.parts[part_index];
  const double sum = std::accumulate(scales.begin(), scales.end(), 0.0);
  const auto offset = static_cast<float>(sum / static_cast<double>(part.blocks));
  to.Set(to.layout.offsets, static_cast<int64_t>(part_index), offset);
  std::array<float, kNf4NestedBlock> centered;
  for (int64_t block = 0; block < part.nested; ++block) {
    const int64_t first = block * kNf4NestedBlock;
    const int64_t n = std::min(kNf4NestedBlock, part.blocks - first);
    for (int64_t j = 0; j < n; ++j) {
      centered[static_cast<size_t>(j)] = scales[static_cast<size_t>(first + j)] - offset;
    }
    const float largest = LargestMagnitude(centered.data(), n), inverse = Inverse(largest);
    to.Set(to.layout.nested, part.first_nested + block, largest);
    for (int64_t j = 0; j < n; ++j) {
      const float scaled = centered[static_cast<size_t>(j)] * inverse;
      const auto code = std::lower_bound(midpoints.begin(), midpoints.end(), scaled);
      to.Set(to.layout.scales, part.first_block + first + j,
             static_cast<uint8_t>(code - midpoints.begin()));
    }
  }
}

// Returns the factors of all blocks of a part.
std::vector<float> LoadScales(const Stored<const std::byte>& from, size_t part_index) {
  const QuantizedLayout& layout = from.layout;
  const QuantizedLayout::Part& part = layout.parts[part_index];
  std::vector<float> scales(static_cast<size_t>(part.blocks));
  for (int64_t b = 0; b < part.blocks; ++b) {
    float& scale = scales[static_cast<size_t>(b)];
    if (part.nested == 0) {
      scale = from.Get<float>(layout.scales, part.first_block + b);
      continue;
    }
    const auto code = from.Get<uint8_t>(layout.scales, part.first_block + b);
    const auto nested = from.Get<float>(layout.nested, part.first_nested + b / kNf4NestedBlock);
    scale = Nf4ScaleLevels()[code] * nested +
            from.Get<float>(layout.offsets, static_cast<int64_t>(part_index));
  }
  return scales;
}

}  // namespace

void Quantize(const QuantizedMatrix& matrix, absl::Span<const float> values,
              absl::Span<std::byte> stored) {
  const Stored<std::byte> to(matrix, stored);
  const int64_t inputs = matrix.inputs;
  std::memset(to.data, 0, static_cast<size_t>(to.layout.bytes));
  std::vector<float> gathered;
  std::vector<uint8_t> codes;
  for (size_t p = 0; p < to.layout.parts.size(); ++p) {
    const QuantizedLayout::Part& part = to.layout.parts[p];
    std::vector<float> scales(static_cast<size_t>(part.blocks));
    ForEachGroup(inputs, part, [&](const Group& group) {
      const int64_t n = group.outputs * inputs;
      gathered.resize(static_cast<size_t>(n));
      codes.resize(static_cast<size_t>(n));
      for (int64_t i = 0; i < inputs; ++i) {
        const float* const row = values.data() + i * matrix.outputs + group.first;
        for (int64_t k = 0; k < group.outputs; ++k) {
          gathered[static_cast<size_t>(k * inputs + i)] = row[k];
        }
      }
      if (to.is_int8) {
        for (int64_t k = 0; k < group.outputs; ++k) {
          to.Set(
              to.layout.scales, group.first + k,
              QuantizeInt8Output(gathered.data() + k * inputs, inputs, codes.data() + k * inputs));
        }
        return StoreInt8Codes(to, inputs, group, codes.data());
      }
      for (int64_t at = 0; at < n; at += kNf4Block) {
        const int64_t block = group.first_block - part.first_block + at / kNf4Block;
        scales[static_cast<size_t>(block)] =
            QuantizeNf4Block(gathered.data() + at, std::min(kNf4Block, n - at), codes.data() + at);
      }
      StoreNf4Codes(to, inputs, group, codes.data());
    });
    if (part.nested > 0) {
      StoreNestedScales(to, p, scales);
    } else {
      for (int64_t b = 0; b < part.blocks; ++b) {
        to.Set(to.layout.scales, part.first_block + b, scales[static_cast<size_t>(b)]);
      }
    }
  }
}

void Dequantize(const QuantizedMatrix& matrix, absl::Span<const std::byte> stored,
                absl::Span<float> values) {
  const Stored<const std::byte> from(matrix, stored);
  for (size_t p = 0; p < from.layout.parts.size(); ++p) {
    const QuantizedLayout::Part& part = from.layout.parts[p];
    const std::vector<float> scales = LoadScales(from, p);
    for (int64_t i = 0; i < matrix.inputs; ++i) {
      const std::byte* const row = from.code_row(i);
      float* const to = values.data() + i * matrix.outputs;
      for (int64_t k = 0; k < part.outputs; ++k) {
        const int64_t o = part.first_output + k;
        if (from.is_int8) {
          const auto code = static_cast<float>(static_cast<int8_t>(row[o]));
          to[o] = code * (from.Get<float>(from.layout.scales, o) / 127.0F);
        } else {
          const auto code = std::to_integer<size_t>(row[o / 2] >> (4 * (o % 2))) & 0x0F;
          to[o] =
              kNf4Levels[code] * scales[static_cast<size_t>((k * matrix.inputs + i) / kNf4Block)];
        }
      }
    }
  }
}

void StorePart(const QuantizedMatrix& matrix, int part, const BitsAndBytesPart& from,
               absl::Span<std::byte> stored) {
  const Stored<std::byte> to(matrix, stored);
  const QuantizedLayout::Part& place = to.layout.parts[static_cast<size_t>(part)];
  std::vector<uint8_t> codes;
  ForEachGroup(matrix.inputs, place, [&](const Group& group) {
    const int64_t n = group.outputs * matrix.inputs;
    const uint8_t* const pairs =
        from.codes.data() + (group.first - place.first_output) * matrix.inputs / 2;
    codes.resize(static_cast<size_t>(n));
    for (int64_t j = 0; j < n; ++j) {
      codes[static_cast<size_t>(j)] = (pairs[j / 2] >> (j % 2 == 0 ? 4 : 0)) & 0x0F;
    }
    StoreNf4Codes(to, matrix.inputs, group, codes.data());
  });
  for (int64_t b = 0; b < place.blocks; ++b) {
    const auto index = static_cast<size_t>(b);
    if (place.nested > 0) {
      to.Set(to.layout.scales, place.first_block + b, from.absmax[index]);
    } else {
      to.Set(to.layout.scales, place.first_block + b, from.float_absmax[index]);
    }
  }
  for (int64_t b = 0; b < place.nested; ++b) {
    to.Set(to.layout.nested, place.first_nested + b, from.nested_absmax[static_cast<size_t>(b)]);
  }
  if (place.nested > 0) to.Set(to.layout.offsets, part, from.offset);
}

BitsAndBytesPart LoadPart(const QuantizedMatrix& matrix, int part,
                          absl::Span<const std::byte> stored) {
  const Stored<const std::byte> from(matrix, stored);
  const QuantizedLayout::Part& place = from.layout.parts[static_cast<size_t>(part)];
  BitsAndBytesPart to;
  to.codes.resize(static_cast<size_t>((place.outputs * matrix.inputs + 1) / 2));
  std::vector<uint8_t> codes;
  ForEachGroup(matrix.inputs, place, [&](const Group& group) {
    const int64_t n = group.outputs * matrix.inputs;
    uint8_t* const pairs = to.codes.data() + (group.first - place.first_output) * matrix.inputs / 2;
    codes.assign(static_cast<size_t>(n + n % 2), 0);
    LoadNf4Codes(from, matrix.inputs, group, codes.data());
    for (int64_t j = 0; j < n; j += 2) {
      const auto index = static_cast<size_t>(j);
      pairs[j / 2] = static_cast<uint8_t>(codes[index] << 4 | codes[index + 1]);
    }
  });
  for (int64_t b = 0; b < place.blocks; ++b) {
    if (place.nested > 0) {
      to.absmax.push_back(from.Get<uint8_t>(from.layout.scales, place.first_block + b));
    } else {
      to.float_absmax.push_back(from.Get<float>(from.layout.scales, place.first_block + b));
    }
  }
  for (int64_t b = 0; b < place.nested; ++b) {
    to.nested_absmax.push_back(from.Get<float>(from.layout.nested, place.first_nested + b));
  }
  if (place.nested > 0) to.offset = from.Get<float>(from.layout.offsets, part);
  return to;
}

}  // namespace stagecoach::kernels
