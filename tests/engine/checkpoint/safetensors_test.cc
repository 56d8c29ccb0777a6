#include "engine/checkpoint/files/safetensors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Shape;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns a file as other programs write it: with only what the format requires.
std::string FileOf(const std::string& header, int64_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  return absl::StrCat(text, header, std::string(static_cast<size_t>(data_bytes), '\1'));
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensors(file, static_cast<int64_t>(file.size()));
}

absl::StatusOr<SafetensorsHeader> ParseHeader(const std::string& header, int64_t data_bytes) {
  return Parse(FileOf(header, data_bytes));
}

TEST(Safetensors, GivesEachTensorItsPlace) {
  SafetensorsHeader header = {.metadata = {{"format", "pt"}},
                              .tensors = {{.name = "b", .shape = {2, 3}},
                                          {.name = "a", .type = DType::kBfloat16, .shape = {5}},
                                          {.name = "one", .type = DType::kFloat64}}};
  const std::string text = LayOutSafetensors(header);
  EXPECT_EQ(text.size() % 64, 0);
  const auto begin = static_cast<int64_t>(text.size());
  EXPECT_EQ(header.tensors[0].begin, begin);
  EXPECT_EQ(header.tensors[1].begin, begin + 24);
  EXPECT_EQ(header.tensors[2].begin, begin + 34);
  EXPECT_THAT(text, HasSubstr(R"({"__metadata__":{"format":"pt"},)"
                              R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                              R"("a":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]},)"
                              R"("one":{"dtype":"F64","shape":[],"data_offsets":[34,42]}})"));
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader parsed, ParseSafetensors(text, begin + 42));
  EXPECT_EQ(parsed, header);
}

TEST(Safetensors, ReadsTensorsInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       ParseHeader(R"({"z":{"dtype":"U8","shape":[0,9],"data_offsets":[4,4]},)"
                                   R"("late":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                                   R"("early":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}  )",
                                   7));
  ASSERT_EQ(header.tensors.size(), 3);
  EXPECT_EQ(header.tensors[0].name, "early");
  EXPECT_EQ(header.tensors[0].type, DType::kInt32);
  EXPECT_EQ(header.tensors[1].name, "z");
  EXPECT_EQ(header.tensors[2].name, "late");
  EXPECT_EQ(header.tensors[2].shape, Shape({3}));
  EXPECT_THAT(header.metadata, IsEmpty());
}

TEST(Safetensors, MayHoldNothing) {
  SafetensorsHeader none;
  const std::string text = LayOutSafetensors(none);
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader parsed, Parse(text));
  EXPECT_THAT(parsed.tensors, IsEmpty());
}

TEST(Safetensors, RefusesWhatIsDamaged) {
  const std::string tensor = R"("dtype":"F32","shape":[2])", a = "{\"a\":{" + tensor;
  const Refusal<std::string> refusals[] = {
      {FileOf("", 0), "not a JSON object"},
      {FileOf(" {}", 0), "not a JSON object"},
      {FileOf("{", 0), "1:2"},
      {FileOf(R"({"a":1})", 0), "$.a"},
      {FileOf(R"({"__metadata__":{"format":1}})", 0), "format"},
      {FileOf(a + "}}", 8), "data_offsets"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[0]}})"), 8), "two numbers"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[0,4]}})"), 8),
       "4 bytes apart; the shape takes 8"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[8,0]}})"), 8), "data_offsets"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[-8,0]}})"), 8), "data_offsets"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[4,12]}})"), 12), "begins at byte"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[0,8]}})"), 7), "data_offsets"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[0,8]}})"), 9), "end at byte"},
      {FileOf(absl::StrCat(a, R"(,"data_offsets":[0,8],"more":1}})"), 8), "more"},
      // Two tensors overlap.
      {FileOf(
           absl::StrCat(a, R"(,"data_offsets":[0,8]},"b":{)", tensor, R"(,"data_offsets":[0,8]}})"),
           8),
       "begins at byte"},
      {FileOf(R"({"a":{"dtype":"F12","shape":[2],"data_offsets":[0,8]}})", 8),
       "is F12, expected F32"},
      {FileOf(R"({"a":{"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]}})", 8),
       "dimensions"},
      {FileOf(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "shape"},
      {FileOf(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
       "shape"},
  };
  ExpectRefusals(Parse, refusals);
}

TEST(Safetensors, RefusesALengthBeyondTheFile) {
  std::string file = FileOf("{}", 0);
  EXPECT_OK(Parse(file));
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_THAT(Parse(file.substr(0, bytes)), StatusIs(absl::StatusCode::kInvalidArgument))
        << bytes;
  }
  file[0] = 3;
  EXPECT_THAT(Parse(file), IsRefused("3 bytes, of 2"));
  file[7] = '\xFF';
  EXPECT_THAT(Parse(file), IsRefused("of 2"));
}

}  // namespace
}  // namespace stagecoach::engine
