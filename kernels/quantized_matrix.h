#ifndef STAGECOACH_KERNELS_QUANTIZED_MATRIX_H_
#define STAGECOACH_KERNELS_QUANTIZED_MATRIX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::kernels {

// How the values of a matrix that is not trained are stored.
//   kNf4        "nf4": 4 bits each, the number of one of 16 levels, times the largest absolute
//   value
//               of the block of 64 that it is in; these are stored in 8 bits each: the number of
//               one of 256 levels, times the largest of 256 blocks, plus an offset, their mean
//               ("double quantization", Dettmers et al. 2023). 4.13 bits a value.
//   kNf4Single  "nf4-single": the same, but the largest values of blocks are float32. 4.5 bits.
//   kInt8       "int8": 8 bits each, in [-127, 127], times the largest absolute value of an output,
//               over 127 (Dettmers et al. 2022, without their outliers).
// Levels, blocks and roundings are those of the library bitsandbytes.
enum class Quantization : uint8_t { kNf4, kNf4Single, kInt8 };
inline constexpr std::array kAllQuantizations = {Quantization::kNf4, Quantization::kNf4Single,
                                                 Quantization::kInt8};
const char* QuantizationName(Quantization kind);
// InvalidArgument lists the names.
absl::StatusOr<Quantization> ParseQuantization(absl::string_view name);

inline constexpr int64_t kNf4Block = 64;         // values
inline constexpr int64_t kNf4NestedBlock = 256;  // blocks
// Ascending, from -1 to 1.
extern const std::array<float, 16> kNf4Levels;
// Returns the levels of the largest values of blocks: ascending, from close to -1 to 1.
const std::array<float, 256>& Nf4ScaleLevels();

// A weight (inputs, outputs) of a linear layer that is stored so. It can consist of several parts,
// of consecutive outputs each, that were matrices of their own: q, k and v. Blocks follow each
// other along the inputs, from output to output; each part begins its own. Regular value type.
struct QuantizedMatrix {
  Quantization kind = Quantization::kNf4;
  int64_t inputs = 1, outputs = 1;
  std::vector<int64_t> parts = {};  // their numbers of outputs; none: it is one part

  // Returns the size of the stored matrix.
  int64_t bytes() const;
  std::string ToString() const;  // "nf4 [896, 1152] in parts of 896, 128, 128"

  friend bool operator==(const QuantizedMatrix&, const QuantizedMatrix&) = default;
};

// InvalidArgument: an extent below 1, one above `max_extent`, or parts that do not make up the
// outputs.
absl::Status CheckQuantizedMatrix(const QuantizedMatrix& matrix, int64_t max_extent);

// Where things are in a stored matrix, in bytes from its beginning: each begins at a multiple of
// 64, and the last ends at one; what lies between is 0. Value (i, o) of part p, whose first output
// is f, is in block ((o - f) inputs + i) / 64 of the part.
//   codes    (inputs, code_row_bytes). NF4: output 2k in the lower, 2k + 1 in the upper half of
//            byte k. Int8: a signed byte for each output.
//   scales   NF4: a byte for each block of a part, part after part. NF4 single: as many float32.
//            Int8: a float32 for each output, the largest value.
//   nested   NF4: a float32 for each 256 blocks of a part, part after part
//   offsets  NF4: a float32 for each part
// A value is kNf4Levels[code] * scale, with scale = Nf4ScaleLevels()[byte] * nested + offset; or
// code * (scale / 127): each operation rounded to float32.
struct QuantizedLayout {
  struct Part {
    int64_t first_output = 0, outputs = 0;
    int64_t first_block = 0, blocks = 0;
    int64_t first_nested = 0, nested = 0;
  };
  int64_t codes = 0, code_row_bytes = 0;
  int64_t scales = 0, nested = 0, offsets = 0;
  int64_t bytes = 0;
  std::vector<Part> parts;

  explicit QuantizedLayout(const QuantizedMatrix& matrix);
};

// Stores (inputs, outputs) values. A value halfway between two levels gets the lower one for NF4,
// the even one for int8. A block of zeros stays that; one of magnitudes below 1e-38 (an output of
// int8: 1e-36) becomes one of such magnitudes. Pre-condition: all are finite; the spans have the
// sizes of the matrix.
void Quantize(const QuantizedMatrix& matrix, absl::Span<const float> values,
              absl::Span<std::byte> stored);
// Returns the values (inputs, outputs) to `values`. Pre-condition: the spans have the sizes of the
// matrix.
void Dequantize(const QuantizedMatrix& matrix, absl::Span<const std::byte> stored,
                absl::Span<float> values);

// One part of a matrix in the form in which bitsandbytes saves a matrix (outputs, inputs).
struct BitsAndBytesPart {
  // kInt8: signed. The others: two each, the first in the upper half; 0 behind the last.
  std::vector<uint8_t> codes;
  std::vector<uint8_t> absmax;       // kNf4: of blocks
  std::vector<float> float_absmax;   // kNf4Single: of blocks; kInt8: of outputs
  std::vector<float> nested_absmax;  // kNf4
  float offset = 0.0F;               // kNf4

  friend bool operator==(const BitsAndBytesPart&, const BitsAndBytesPart&) = default;
};
// Pre-condition of StorePart: the vectors have the sizes of the part.
// StorePart ignores what is behind the last code, and touches neither the other parts nor what lies
// between sections: a matrix that is stored part by part begins as zeros.
void StorePart(const QuantizedMatrix& matrix, int part, const BitsAndBytesPart& from,
               absl::Span<std::byte> stored);
BitsAndBytesPart LoadPart(const QuantizedMatrix& matrix, int part,
                          absl::Span<const std::byte> stored);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_QUANTIZED_MATRIX_H_
