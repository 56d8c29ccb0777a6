// Compares quantized matrices with those of the library bitsandbytes
// (tests/fixtures/quantized/make_matrices.py).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::kernels::bits_and_bytes_test {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const json& Fixture() {
  static const auto* const fixture = new json(*base::ParseJson(*base::ReadFile(
      absl::StrCat(STAGECOACH_TEST_FIXTURES, "/quantized/matrices.json"), 1 << 20)));
  return *fixture;
}

// Returns an array of the fixture; an empty one if it has none of the name.
template <typename T>
std::vector<T> Array(const json& from, const std::string& name) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(from.value(name, ""), &bytes)) << name;
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

// A matrix of the fixture, and what the library made of it.
struct Made {
  explicit Made(const json& from)
      : matrix{*ParseQuantization(std::string(from.at("kind"))), from.at("inputs"),
               from.at("outputs")},
        stored(static_cast<size_t>(matrix.bytes())),
        values(Array<float>(from, "values")) {
    part.codes = Array<uint8_t>(from, "codes");
    if (matrix.kind == Quantization::kNf4) {
      part.absmax = Array<uint8_t>(from, "absmax");
      part.nested_absmax = Array<float>(from, "nested_absmax");
      part.offset = Array<float>(from, "offset").at(0);
    } else {
      part.float_absmax = Array<float>(from, "absmax");
    }
  }

  // Returns the weights that the library was given, as (inputs, outputs).
  std::vector<float> Weights() const {
    std::vector<float> weights(static_cast<size_t>(matrix.inputs * matrix.outputs));
    for (int64_t n = 0; n < std::ssize(weights); ++n) {
      const int64_t value = ((n * n * 31 + n * 17) % 127 - 63) * (1 + n / 64 * 7 % 251);
      weights[index(n)] = static_cast<float>(value);
    }
    return weights;
  }
  // Returns those of our dequantized values that the fixture has.
  std::vector<float> DequantizedValues() const {
    std::vector<float> all(static_cast<size_t>(matrix.inputs * matrix.outputs)), some;
    Dequantize(matrix, stored, absl::MakeSpan(all));
    const int64_t step = Fixture().at("values_step");
    for (int64_t n = 0; n < std::ssize(all); n += step) some.push_back(all[index(n)]);
    return some;
  }
  // Returns where element n of a matrix (outputs, inputs) is in one of (inputs, outputs).
  size_t index(int64_t n) const {
    return static_cast<size_t>(n % matrix.inputs * matrix.outputs + n / matrix.inputs);
  }

  QuantizedMatrix matrix;
  std::vector<std::byte> stored;
  BitsAndBytesPart part;
  std::vector<float> values;
};

// Matrices of NF4, or else of int8.
std::vector<Made> Matrices(bool of_nf4) {
  std::vector<Made> matrices;
  for (const json& matrix : Fixture().at("matrices")) {
    Made made(matrix);
    if ((made.matrix.kind != Quantization::kInt8) == of_nf4) matrices.push_back(std::move(made));
  }
  EXPECT_GE(matrices.size(), 2);
  return matrices;
}

TEST(BitsAndBytes, HasTheSameLevels) {
  EXPECT_THAT(kNf4Levels, ElementsAreArray(Array<float>(Fixture(), "levels")));
  EXPECT_THAT(Nf4ScaleLevels(), ElementsAreArray(Array<float>(Fixture(), "scale_levels")));
}

TEST(BitsAndBytes, QuantizesNf4Alike) {
  for (Made& made : Matrices(true)) {
    SCOPED_TRACE(made.matrix.ToString());
    Quantize(made.matrix, made.Weights(), absl::MakeSpan(made.stored));
    // It puts something behind the last code of an odd number.
    if (made.matrix.inputs * made.matrix.outputs % 2 == 1) made.part.codes.back() &= 0xF0;
    const BitsAndBytesPart ours = LoadPart(made.matrix, 0, made.stored);
    EXPECT_THAT(ours.codes, ElementsAreArray(made.part.codes));
    EXPECT_THAT(ours.absmax, ElementsAreArray(made.part.absmax));
    EXPECT_THAT(ours.float_absmax, ElementsAreArray(made.part.float_absmax));
    EXPECT_THAT(ours.nested_absmax, ElementsAreArray(made.part.nested_absmax));
    EXPECT_EQ(ours.offset, made.part.offset);
  }
}

TEST(BitsAndBytes, DequantizesNf4Alike) {
  for (Made& made : Matrices(true)) {
    SCOPED_TRACE(made.matrix.ToString());
    StorePart(made.matrix, 0, made.part, absl::MakeSpan(made.stored));
    EXPECT_THAT(made.DequantizedValues(), ElementsAreArray(made.values));
  }
}

// It multiplies by 1/127, rounded, after the largest value: results may differ in the last bits.
TEST(BitsAndBytes, QuantizesInt8Alike) {
  for (Made& made : Matrices(false)) {
    SCOPED_TRACE(made.matrix.ToString());
    Quantize(made.matrix, made.Weights(), absl::MakeSpan(made.stored));
    EXPECT_EQ(LoadPart(made.matrix, 0, made.stored), made.part);
    const std::vector<std::byte> quantized = made.stored;
    std::fill(made.stored.begin(), made.stored.end(), std::byte{0});
    StorePart(made.matrix, 0, made.part, absl::MakeSpan(made.stored));
    EXPECT_EQ(made.stored, quantized);
    const std::vector<float> values = made.DequantizedValues();
    ASSERT_EQ(values.size(), made.values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], made.values[i], std::abs(made.values[i]) * 0x1p-22F);
    }
  }
}

}  // namespace
}  // namespace stagecoach::kernels::bits_and_bytes_test
