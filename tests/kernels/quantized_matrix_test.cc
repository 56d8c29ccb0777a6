#include "kernels/quantized_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::quantized_matrix_test {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

size_t Elements(const QuantizedMatrix& matrix) {
  return static_cast<size_t>(matrix.inputs * matrix.outputs);
}

std::vector<std::byte> Quantized(const QuantizedMatrix& matrix, const std::vector<float>& values) {
  std::vector<std::byte> stored(static_cast<size_t>(matrix.bytes()), std::byte{0xFF});
  Quantize(matrix, values, absl::MakeSpan(stored));
  return stored;
}

std::vector<float> Dequantized(const QuantizedMatrix& matrix,
                               const std::vector<std::byte>& stored) {
  std::vector<float> values(Elements(matrix), std::numeric_limits<float>::quiet_NaN());
  Dequantize(matrix, stored, absl::MakeSpan(values));
  return values;
}

// Returns the values that are stored in place of the given ones.
std::vector<float> RoundTrip(const QuantizedMatrix& matrix, const std::vector<float>& values) {
  return Dequantized(matrix, Quantized(matrix, values));
}

// Shapes of one block and of many, whole ones and ones that straddle outputs, with even and odd
// numbers of outputs; in parts, too.
std::vector<QuantizedMatrix> MatricesOf(Quantization kind) {
  return {{kind, 1, 1},
          {kind, 5, 1},
          {kind, 64, 2},
          {kind, 5, 37},
          {kind, 48, 70},
          {kind, 96, 129},
          {kind, 128, 151},
          {kind, 5, 37, {3, 1, 33}},
          {kind, 48, 70, {35, 14, 21}},
          {kind, 192, 151, {100, 25, 26}}};
}

// Returns the part of a value, and its number in it.
struct Place {
  size_t part;
  int64_t number;
};
Place PlaceOf(const QuantizedMatrix& matrix, int64_t input, int64_t output) {
  const QuantizedLayout layout(matrix);
  size_t part = layout.parts.size() - 1;
  while (output < layout.parts[part].first_output) --part;
  return {part, (output - layout.parts[part].first_output) * matrix.inputs + input};
}

TEST(QuantizationNames, AreReadAndWritten) {
  EXPECT_STREQ(QuantizationName(Quantization::kNf4), "nf4");
  EXPECT_STREQ(QuantizationName(Quantization::kNf4Single), "nf4-single");
  EXPECT_STREQ(QuantizationName(Quantization::kInt8), "int8");
  for (const Quantization kind : kAllQuantizations) {
    const absl::StatusOr<Quantization> parsed = ParseQuantization(QuantizationName(kind));
    ASSERT_OK(parsed);
    EXPECT_EQ(*parsed, kind);
  }
}

TEST(QuantizationNames, OthersAreRefused) {
  for (const char* const name : {"", "NF4", "fp4", "nf4 "}) {
    EXPECT_THAT(ParseQuantization(name),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nf4, nf4-single, int8")));
  }
}

TEST(QuantizedMatrix, SaysWhatItIs) {
  EXPECT_EQ((QuantizedMatrix{Quantization::kNf4, 896, 1152, {896, 128, 128}}).ToString(),
            "nf4 [896, 1152] in parts of 896, 128, 128");
  EXPECT_EQ((QuantizedMatrix{Quantization::kInt8, 3, 4}).ToString(), "int8 [3, 4]");
}

TEST(QuantizedMatrix, IsRefusedUnlessItsExtentsAndPartsFit) {
  const Refusal<Change<QuantizedMatrix>> refusals[] = {
      {[](QuantizedMatrix& m) { m.inputs = 0; }, "1 to 100"},
      {[](QuantizedMatrix& m) { m.inputs = 101; }, "1 to 100"},
      {[](QuantizedMatrix& m) { m.outputs = -1; }, "1 to 100"},
      {[](QuantizedMatrix& m) { m.outputs = std::numeric_limits<int64_t>::max(); }, "1 to 100"},
      {[](QuantizedMatrix& m) { m.outputs = 50; }, "parts"},
      {[](QuantizedMatrix& m) {
         m.parts = {40, 20, 0};
       },
       "nf4 [100, 60] in parts of 40, 20, 0"},
      {[](QuantizedMatrix& m) {
         m.parts = {40, 30, -10};
       },
       "parts"},
      {[](QuantizedMatrix& m) { m.parts = {59}; }, "parts"},
      {[](QuantizedMatrix& m) { m.parts = {61}; }, "parts"},
      {[](QuantizedMatrix& m) {
         m.parts = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max(), 62};
       },
       "parts"},
  };
  const QuantizedMatrix good = {
      .kind = Quantization::kNf4, .inputs = 100, .outputs = 60, .parts = {40, 15, 5}};
  ExpectRefusedChanges(
      good, [](const QuantizedMatrix& m) { return CheckQuantizedMatrix(m, 100); }, refusals);
  EXPECT_OK(CheckQuantizedMatrix({.inputs = 100, .outputs = 100}, 100));
}

// 896 x 1152 / 64 = 16,128 blocks, of which 12,544 are of the first part: 49 times 256.
TEST(QuantizedLayout, OfNf4HasNestedScalesOfItsParts) {
  const QuantizedLayout layout({Quantization::kNf4, 896, 1152, {896, 128, 128}});
  EXPECT_EQ(layout.codes, 0);
  EXPECT_EQ(layout.code_row_bytes, 576);
  EXPECT_EQ(layout.scales, 896 * 576);
  EXPECT_EQ(layout.nested, layout.scales + 16128);
  EXPECT_EQ(layout.offsets, layout.nested + 256);  // behind 49 + 7 + 7 numbers
  EXPECT_EQ(layout.bytes, layout.offsets + 64);
  ASSERT_EQ(layout.parts.size(), 3);
  EXPECT_EQ(layout.parts[1].first_output, 896);
  EXPECT_EQ(layout.parts[1].outputs, 128);
  EXPECT_EQ(layout.parts[1].first_block, 12544);
  EXPECT_EQ(layout.parts[1].blocks, 1792);
  EXPECT_EQ(layout.parts[1].first_nested, 49);
  EXPECT_EQ(layout.parts[1].nested, 7);
  EXPECT_EQ(layout.parts[2].first_output, 1024);
  EXPECT_EQ(layout.parts[2].first_block, 14336);
  EXPECT_EQ(layout.parts[2].first_nested, 56);
}

TEST(QuantizedLayout, OfOthersHasOneLevelOfScales) {
  const QuantizedLayout single({Quantization::kNf4Single, 5, 37, {4, 33}});
  EXPECT_EQ(single.code_row_bytes, 19);
  EXPECT_EQ(single.scales, 128);  // behind 95 bytes
  EXPECT_EQ(single.parts[0].blocks, 1);
  EXPECT_EQ(single.parts[1].first_block, 1);
  EXPECT_EQ(single.parts[1].blocks, 3);  // of 165 values
  EXPECT_EQ(single.bytes, 192);
  const QuantizedLayout int8({Quantization::kInt8, 5, 37});
  EXPECT_EQ(int8.code_row_bytes, 37);
  EXPECT_EQ(int8.scales, 192);  // behind 185 bytes
  EXPECT_EQ(int8.bytes, 384);   // behind 148 more
}

TEST(QuantizedMatrix, TakesTheBytesThatItsKindPromises) {
  const auto bits = [](Quantization kind) {
    return 8.0 * static_cast<double>(QuantizedMatrix{kind, 4096, 4096}.bytes()) / (4096.0 * 4096.0);
  };
  EXPECT_NEAR(bits(Quantization::kNf4), 4.0 + 8.0 / 64 + 32.0 / (64 * 256), 1e-4);
  EXPECT_NEAR(bits(Quantization::kNf4Single), 4.5, 1e-4);
  EXPECT_NEAR(bits(Quantization::kInt8), 8.0 + 32.0 / 4096, 1e-4);
}

TEST(Nf4Levels, AreAscendingAndHoldMinusOneZeroAndOne) {
  EXPECT_TRUE(std::is_sorted(kNf4Levels.begin(), kNf4Levels.end()));
  EXPECT_EQ(kNf4Levels[0], -1.0F);
  EXPECT_EQ(kNf4Levels[7], 0.0F);
  EXPECT_EQ(kNf4Levels[8], 0.07958029955625534F);
  EXPECT_EQ(kNf4Levels[15], 1.0F);
}

TEST(Nf4ScaleLevels, AreAscendingAndSymmetricButForOne) {
  const std::array<float, 256>& levels = Nf4ScaleLevels();
  EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end()));
  EXPECT_EQ(levels[0], -0.992968738079071F);
  EXPECT_EQ(levels[127], 0.0F);
  EXPECT_EQ(levels[128], 5.5000004e-7F);
  EXPECT_EQ(levels[254], 0.992968738079071F);
  EXPECT_EQ(levels[255], 1.0F);
  for (size_t i = 0; i < 127; ++i) EXPECT_EQ(levels[i], -levels[254 - i]);
}

// Returns the largest magnitude in the block of each value.
std::vector<float> LargestOfBlocks(const QuantizedMatrix& matrix,
                                   const std::vector<float>& values) {
  const QuantizedLayout layout(matrix);
  const QuantizedLayout::Part& last = layout.parts.back();
  std::vector<float> largest(static_cast<size_t>(last.first_block + last.blocks));
  std::vector<size_t> blocks;
  for (int64_t n = 0; n < std::ssize(values); ++n) {
    const Place place = PlaceOf(matrix, n / matrix.outputs, n % matrix.outputs);
    blocks.push_back(
        static_cast<size_t>(layout.parts[place.part].first_block + place.number / kNf4Block));
    float& most = largest[blocks.back()];
    most = std::max(most, std::abs(values[static_cast<size_t>(n)]));
  }
  std::vector<float> of_values;
  for (const size_t block : blocks) of_values.push_back(largest[block]);
  return of_values;
}

// Levels are at most 0.304 apart. What a block's scale loses to its 8 bits, whose levels are at
// most 0.0141 apart, is a share of a difference of scales, which the largest of all bounds.
TEST(QuantizedNf4, ValuesAreWithinHalfAStepOfTheirBlock) {
  for (const Quantization kind : {Quantization::kNf4Single, Quantization::kNf4}) {
    for (const QuantizedMatrix& matrix : MatricesOf(kind)) {
      SCOPED_TRACE(matrix.ToString());
      const std::vector<float> values = RandomNormal(matrix.inputs * matrix.outputs, 1);
      const std::vector<float> result = RoundTrip(matrix, values);
      const std::vector<float> largest = LargestOfBlocks(matrix, values);
      const float of_scale = kind == Quantization::kNf4
                                 ? 0.0071F * *std::max_element(largest.begin(), largest.end())
                                 : 0.0F;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(result[i], values[i], 0.152F * largest[i] + of_scale) << i;
      }
    }
  }
}

TEST(QuantizedNf4, LevelsOfABlockStayWhatTheyAre) {
  const QuantizedMatrix matrix = {Quantization::kNf4Single, 16, 4};
  std::vector<float> values(Elements(matrix));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 3.0F * kNf4Levels[i * 5 % 16];
  EXPECT_THAT(RoundTrip(matrix, values), ElementsAreArray(values));
}

TEST(QuantizedNf4, AValueHalfwayBetweenLevelsGetsTheLower) {
  const QuantizedMatrix matrix = {Quantization::kNf4Single, 3, 1};
  const float halfway = (kNf4Levels[8] + kNf4Levels[9]) / 2.0F;
  const std::vector<float> values = {1.0F, halfway, std::nextafter(halfway, 1.0F)};
  EXPECT_THAT(RoundTrip(matrix, values), ElementsAre(1.0F, kNf4Levels[8], kNf4Levels[9]));
}

TEST(QuantizedInt8, AValueHalfwayBetweenCodesGetsTheEvenOne) {
  const QuantizedMatrix matrix = {Quantization::kInt8, 7, 1};
  EXPECT_THAT(RoundTrip(matrix, {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -126.5F}),
              ElementsAre(127.0F, 0.0F, 2.0F, 2.0F, 0.0F, -2.0F, -126.0F));
}

TEST(QuantizedInt8, ValuesAreWithinHalfAStepOfTheirOutput) {
  for (const QuantizedMatrix& matrix : MatricesOf(Quantization::kInt8)) {
    SCOPED_TRACE(matrix.ToString());
    const std::vector<float> values = RandomNormal(matrix.inputs * matrix.outputs, 2);
    const std::vector<float> result = RoundTrip(matrix, values);
    for (size_t o = 0; o < static_cast<size_t>(matrix.outputs); ++o) {
      float largest = 0.0F;
      for (size_t n = o; n < values.size(); n += static_cast<size_t>(matrix.outputs)) {
        largest = std::max(largest, std::abs(values[n]));
      }
      for (size_t n = o; n < values.size(); n += static_cast<size_t>(matrix.outputs)) {
        ASSERT_NEAR(result[n], values[n], largest / 253.9F);
      }
    }
  }
}

TEST(QuantizedValues, QuantizedAgainAreTheSame) {
  for (const QuantizedMatrix& matrix : MatricesOf(Quantization::kNf4Single)) {
    SCOPED_TRACE(matrix.ToString());
    const std::vector<std::byte> stored =
        Quantized(matrix, RandomNormal(matrix.inputs * matrix.outputs, 3));
    EXPECT_EQ(Quantized(matrix, Dequantized(matrix, stored)), stored);
  }
}

// An output's largest value is 127 times a rounded number: its last bit may change.
TEST(QuantizedValues, OfInt8QuantizedAgainHaveTheSameCodes) {
  for (const QuantizedMatrix& matrix : MatricesOf(Quantization::kInt8)) {
    SCOPED_TRACE(matrix.ToString());
    std::vector<std::byte> stored =
        Quantized(matrix, RandomNormal(matrix.inputs * matrix.outputs, 4));
    const std::vector<float> values = Dequantized(matrix, stored);
    std::vector<std::byte> again = Quantized(matrix, values);
    const std::vector<float> values_again = Dequantized(matrix, again);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values_again[i], values[i], std::abs(values[i]) * 0x1p-22F);
    }
    again.resize(Elements(matrix));
    stored.resize(Elements(matrix));
    EXPECT_EQ(again, stored);
  }
}

TEST(QuantizedValues, ThatAreZeroStayZero) {
  for (const Quantization kind : kAllQuantizations) {
    for (const QuantizedMatrix& matrix : MatricesOf(kind)) {
      EXPECT_THAT(RoundTrip(matrix, std::vector<float>(Elements(matrix))), Each(0.0F));
    }
  }
}

TEST(QuantizedValues, ThatAreTinyStayFinite) {
  for (const Quantization kind : kAllQuantizations) {
    const QuantizedMatrix matrix = {kind, 64, 2};
    std::vector<float> values(Elements(matrix), std::numeric_limits<float>::denorm_min());
    values[1] = -std::numeric_limits<float>::min();
    EXPECT_THAT(RoundTrip(matrix, values),
                Each(AllOf(::testing::Ge(-1e-37F), ::testing::Le(1e-37F))));
  }
}

TEST(QuantizedMatrix, HasZerosBetweenItsSections) {
  for (const Quantization kind : kAllQuantizations) {
    const QuantizedMatrix matrix = {kind, 5, 37, {4, 33}};
    const QuantizedLayout layout(matrix);
    const std::vector<std::byte> stored =
        Quantized(matrix, RandomNormal(matrix.inputs * matrix.outputs, 5));
    for (int64_t b = matrix.inputs * layout.code_row_bytes; b < layout.scales; ++b) {
      EXPECT_EQ(stored[static_cast<size_t>(b)], std::byte{0});
    }
    EXPECT_EQ(stored.back(), std::byte{0});
  }
}

TEST(QuantizedParts, AreQuantizedAsMatricesOfTheirOwn) {
  for (const Quantization kind : kAllQuantizations) {
    for (const QuantizedMatrix& whole : MatricesOf(kind)) {
      SCOPED_TRACE(whole.ToString());
      const std::vector<float> values = RandomNormal(whole.inputs * whole.outputs, 6);
      const std::vector<float> result = RoundTrip(whole, values);
      for (const QuantizedLayout::Part& part : QuantizedLayout(whole).parts) {
        const auto columns = [&](const std::vector<float>& of) {
          std::vector<float> taken;
          for (int64_t i = 0; i < whole.inputs; ++i) {
            const auto row = of.begin() + i * whole.outputs + part.first_output;
            taken.insert(taken.end(), row, row + part.outputs);
          }
          return taken;
        };
        const QuantizedMatrix alone = {kind, whole.inputs, part.outputs};
        EXPECT_THAT(RoundTrip(alone, columns(values)), ElementsAreArray(columns(result)));
      }
    }
  }
}

TEST(BitsAndBytesPart, HasTheCodesOfItsOutputsInOrder) {
  // 3 inputs, 2 outputs in a part each. The largest value of each is the last level.
  const QuantizedMatrix matrix = {Quantization::kNf4Single, 3, 2, {1, 1}};
  const std::vector<std::byte> stored = Quantized(matrix, {1.0F, -2.0F,  //
                                                           0.0F, 2.0F,   //
                                                           -1.0F, 0.0F});
  const BitsAndBytesPart first = LoadPart(matrix, 0, stored), second = LoadPart(matrix, 1, stored);
  EXPECT_THAT(first.codes, ElementsAre(0xF7, 0x00));
  EXPECT_THAT(first.float_absmax, ElementsAre(1.0F));
  EXPECT_THAT(second.codes, ElementsAre(0x0F, 0x70));
  EXPECT_THAT(second.float_absmax, ElementsAre(2.0F));
}

TEST(BitsAndBytesPart, StoredAgainIsTheSameMatrix) {
  for (const Quantization kind : {Quantization::kNf4, Quantization::kNf4Single}) {
    for (const QuantizedMatrix& matrix : MatricesOf(kind)) {
      SCOPED_TRACE(matrix.ToString());
      const std::vector<std::byte> stored =
          Quantized(matrix, RandomNormal(matrix.inputs * matrix.outputs, 7));
      std::vector<std::byte> again(stored.size());
      // The last part first: none overwrites what it shares a byte with.
      for (int p = static_cast<int>(QuantizedLayout(matrix).parts.size()) - 1; p >= 0; --p) {
        const BitsAndBytesPart part = LoadPart(matrix, p, stored);
        StorePart(matrix, p, part, absl::MakeSpan(again));
        EXPECT_EQ(LoadPart(matrix, p, again), part);
      }
      EXPECT_EQ(again, stored);
    }
  }
}

}  // namespace
}  // namespace stagecoach::kernels::quantized_matrix_test
