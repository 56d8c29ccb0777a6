#include "engine/checkpoint/files/stored_matrix.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Tensor;
using ::stagecoach::testing::StatusIs;

// Some values are halfway between two bfloat16 values; all are exact as float16.
float ValueAt(int64_t i) { return static_cast<float>((i * 37) % 2001 - 1000) / 64.0F; }

template <typename T>
void Append(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void Append(float value, DType type, std::string& bytes) {
  switch (type) {
    case DType::kFloat64:
      return Append(static_cast<double>(value), bytes);
    case DType::kBfloat16:
      return Append(kernels::ToBfloat16(value), bytes);
    case DType::kFloat16: {
      const int exponent = value == 0.0F ? -15 : std::ilogb(value);
      const float fraction = std::ldexp(std::fabs(value), 10 - exponent) - 1024.0F;
      const int magnitude =
          value == 0.0F ? 0 : ((exponent + 15) << 10) + static_cast<int>(fraction);
      return Append(static_cast<uint16_t>(magnitude | (std::signbit(value) ? 0x8000 : 0)), bytes);
    }
    default:
      return Append(value, bytes);
  }
}

float Rounded(float value) { return kernels::FromBfloat16(kernels::ToBfloat16(value)); }

class StoredMatrices : public ::testing::Test {
 protected:
  // Writes a file that begins with 8 other bytes.
  base::FileReader FileOf(const std::string& bytes) const {
    EXPECT_OK(base::WriteFileAtomically(path_, "whatever" + bytes));
    return base::FileReader::Open(path_).value();
  }
  const stagecoach::testing::TestFolder folder_;
  const std::string path_ = (folder_.path() / "matrix").string();
};

// The sizes have remainders modulo eight or none, and one part or several.
TEST_F(StoredMatrices, AreReadFromEveryTypeIntoEveryType) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 5}, {8, 16}, {19, 13}, {700, 411}};
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kBfloat16, DType::kFloat16}) {
    for (const auto& [rows, columns] : sizes) {
      std::string bytes;
      for (int64_t i = 0; i < rows * columns; ++i) Append(ValueAt(i), type, bytes);
      const base::FileReader file = FileOf(bytes);
      for (const bool transposes : {false, true}) {
        for (const DType to : {DType::kFloat32, DType::kBfloat16}) {
          const int64_t lines = transposes ? columns : rows, length = transposes ? rows : columns;
          const int64_t stride = length + 3;
          std::vector<uint32_t> memory(static_cast<size_t>(lines * stride), 0x3F803F80U);
          const Tensor values = {memory.data(), to, kernels::Shape{lines, stride}};
          ASSERT_OK_AND_ASSIGN(
              const std::optional<float> bad,
              ReadMatrix(
                  {.file = &file, .type = type, .begin = 8, .rows = rows, .columns = columns},
                  transposes, values, stride));
          EXPECT_FALSE(bad.has_value());
          for (int64_t i = 0; i < lines * stride; ++i) {
            const int64_t line = i / stride, place = i % stride;
            const int64_t stored = transposes ? place * columns + line : line * columns + place;
            float expected = place < length ? ValueAt(stored) : 1.0F;
            if (place < length && type == DType::kBfloat16) expected = Rounded(expected);
            if (to == DType::kBfloat16) expected = Rounded(expected);
            const float actual =
                to == DType::kFloat32 ? values.f32()[i] : kernels::FromBfloat16(values.bf16()[i]);
            // Memory past the rows stays as it was, which is not exactly 1 as a float.
            if (place >= length && to == DType::kFloat32) {
              ASSERT_EQ(memory[static_cast<size_t>(i)], 0x3F803F80U);
            } else {
              ASSERT_EQ(actual, expected)
                  << static_cast<int>(type) << " " << rows << " x " << columns << " " << i;
            }
          }
        }
      }
    }
  }
}

TEST_F(StoredMatrices, TellTheFirstNumberThatIsNotFiniteAndWhereTheFileEnds) {
  std::string bytes;
  for (const double value : {1.0, 1e300, std::numeric_limits<double>::quiet_NaN(), 2.0}) {
    Append(value, bytes);
  }
  const base::FileReader file = FileOf(bytes);
  std::vector<float> memory(10);
  const Tensor values = kernels::Float32(memory.data(), kernels::Shape{10});
  StoredMatrix matrix = {
      .file = &file, .type = DType::kFloat64, .begin = 8, .rows = 2, .columns = 2};
  EXPECT_EQ(ReadMatrix(matrix, false, values, 2).value(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(memory[1], 0.0F);
  matrix.begin += 16;
  EXPECT_THAT(ReadMatrix(matrix, false, values, 2), StatusIs(absl::StatusCode::kOutOfRange));
  matrix.rows = 1;
  EXPECT_TRUE(std::isnan(ReadMatrix(matrix, true, values, 1).value().value()));
}

}  // namespace
}  // namespace stagecoach::engine
