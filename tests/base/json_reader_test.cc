#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text/json.h"

namespace stagecoach::base {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;

template <typename T>
std::string MessageOf(const absl::StatusOr<T>& result) {
  return std::string(result.status().message());
}

class ReaderTest : public ::testing::Test {
 protected:
  // Returns a reader of `text`, which must be an object.
  ObjectReader Read(absl::string_view text) {
    auto parsed = ParseJson(text);
    STAGECOACH_CHECK_OK(parsed);
    value_ = *std::move(parsed);
    auto reader = ObjectReader::Create(value_);
    STAGECOACH_CHECK_OK(reader);
    return *std::move(reader);
  }
  ArrayReader ReadArray(absl::string_view elements) {
    auto array = Read(absl::StrCat("{\"a\": ", elements, "}")).RequiredArray("a");
    STAGECOACH_CHECK_OK(array);
    return *array;
  }

  json value_;
};

TEST_F(ReaderTest, ReadsEveryType) {
  ObjectReader reader = Read(R"({"i": -3, "d": 2.5, "s": "x", "a": [1], "o": {"k": 1}})");
  EXPECT_EQ(*reader.RequiredInt64("i"), -3);
  EXPECT_EQ(*reader.RequiredDouble("d"), 2.5);
  EXPECT_EQ(*reader.RequiredString("s"), "x");
  EXPECT_EQ(reader.RequiredArray("a")->size(), 1);
  EXPECT_EQ(*reader.RequiredObject("o")->RequiredInt64("k"), 1);
  EXPECT_EQ(reader.Finish(), absl::OkStatus());
}

TEST_F(ReaderTest, OptionalValuesAreReadWherePresent) {
  ObjectReader reader =
      Read(R"({"b": true, "i": -3, "d": 2.5, "s": "x", "a": [1], "o": {"k": 1}})");
  EXPECT_EQ(*reader.OptionalBool("b", false), true);
  EXPECT_EQ(*reader.OptionalInt64("i", 7), -3);
  EXPECT_EQ(*reader.OptionalDouble("d", 7), 2.5);
  EXPECT_EQ(*reader.OptionalString("s", "y"), "x");
  EXPECT_EQ((*reader.OptionalArray("a"))->size(), 1);
  EXPECT_EQ((*reader.OptionalObject("o"))->path(), "$.o");
}

TEST_F(ReaderTest, OptionalValuesFallBackWhereAbsent) {
  ObjectReader reader = Read("{}");
  EXPECT_EQ(*reader.OptionalBool("b", true), true);
  EXPECT_EQ(*reader.OptionalInt64("i", 7, {.min = 10}), 7);
  EXPECT_EQ(*reader.OptionalDouble("d", 7.5), 7.5);
  EXPECT_EQ(*reader.OptionalString("s", "y"), "y");
  EXPECT_EQ(*reader.OptionalArray("a"), std::nullopt);
  EXPECT_EQ(*reader.OptionalObject("o"), std::nullopt);
}

TEST_F(ReaderTest, OptionalValuesOfTheWrongTypeAreErrors) {
  ObjectReader reader = Read(R"({"x": null})");
  EXPECT_FALSE(reader.OptionalBool("x", true).ok());
  EXPECT_FALSE(reader.OptionalInt64("x", 1).ok());
  EXPECT_FALSE(reader.OptionalDouble("x", 1).ok());
  EXPECT_FALSE(reader.OptionalString("x", "y").ok());
  EXPECT_FALSE(reader.OptionalArray("x").ok());
  EXPECT_FALSE(reader.OptionalObject("x").ok());
}

TEST_F(ReaderTest, MissingKeyIsNamed) {
  EXPECT_EQ(MessageOf(Read("{}").RequiredInt64("stages")), "$: the key \"stages\" is missing");
  EXPECT_EQ(MessageOf(Read(R"({"stage": 1, "ranks": 2})").RequiredInt64("stages")),
            "$: the key \"stages\" is missing; there is a \"stage\"");
}

TEST_F(ReaderTest, WrongTypeSaysWhatWasExpectedAndFound) {
  ObjectReader reader = Read(R"({"x": "1", "y": 1, "z": [], "w": {}})");
  EXPECT_EQ(MessageOf(reader.OptionalBool("y", true)), "$.y: expected true or false, found 1");
  EXPECT_EQ(MessageOf(reader.RequiredInt64("x")),
            "$.x: expected an integer of 64 bits, found a string");
  EXPECT_EQ(MessageOf(reader.RequiredDouble("z")), "$.z: expected a number, found an array");
  EXPECT_EQ(MessageOf(reader.RequiredString("w")), "$.w: expected a string, found an object");
  EXPECT_EQ(MessageOf(reader.RequiredArray("y")), "$.y: expected an array, found 1");
  EXPECT_EQ(MessageOf(reader.RequiredObject("y")), "$.y: expected an object, found 1");
}

TEST_F(ReaderTest, IntegersMustBeWrittenAsIntegers) {
  for (const char* number : {"3.5", "3.0", "3e0", "true", "null"}) {
    EXPECT_EQ(
        MessageOf(Read(absl::StrCat("{\"x\": ", number, "}")).RequiredInt64("x")),
        absl::StrCat("$.x: expected an integer of 64 bits, found ", json::parse(number).dump()));
  }
}

TEST_F(ReaderTest, IntegersBeyond64BitsAreRefused) {
  EXPECT_EQ(*Read(R"({"x": 9223372036854775807})").RequiredInt64("x"),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*Read(R"({"x": -9223372036854775808})").RequiredInt64("x"),
            std::numeric_limits<int64_t>::min());
  for (const char* number : {"9223372036854775808", "18446744073709551615", "99999999999999999999",
                             "-9223372036854775809"}) {
    EXPECT_FALSE(Read(absl::StrCat("{\"x\": ", number, "}")).RequiredInt64("x").ok()) << number;
  }
}

TEST_F(ReaderTest, IntegersHoldTheirRange) {
  const auto message = [this](int64_t value, Int64Range range) {
    return MessageOf(Read(absl::StrCat("{\"x\": ", value, "}")).RequiredInt64("x", range));
  };
  EXPECT_EQ(message(1, {.min = 1, .max = 8}), "");
  EXPECT_EQ(message(8, {.min = 1, .max = 8}), "");
  EXPECT_EQ(message(0, {.min = 1, .max = 8}), "$.x: must be from 1 to 8, found 0");
  EXPECT_EQ(message(9, {.min = 1, .max = 8}), "$.x: must be from 1 to 8, found 9");
  EXPECT_EQ(message(0, {.min = 1}), "$.x: must be at least 1, found 0");
  EXPECT_EQ(message(9, {.max = 8}), "$.x: must be at most 8, found 9");
}

TEST_F(ReaderTest, DoublesHoldTheirRange) {
  const DoubleRange range = {.min = 0, .max = 0.5};
  EXPECT_EQ(*Read(R"({"x": 0.5})").RequiredDouble("x", range), 0.5);
  EXPECT_EQ(MessageOf(Read(R"({"x": 0.75})").RequiredDouble("x", range)),
            "$.x: must be from 0.0 to 0.5, found 0.75");
}

TEST_F(ReaderTest, DoublesMayBeWrittenAsIntegers) {
  EXPECT_EQ(*Read(R"({"x": 3})").RequiredDouble("x"), 3.0);
}

TEST(ObjectReader, DoublesMustBeFinite) {
  json value;
  value["x"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(MessageOf(ObjectReader::Create(value)->RequiredDouble("x")),
            "$.x: expected a finite number");
}

TEST(ObjectReader, RefusesWhatIsNoObject) {
  EXPECT_EQ(MessageOf(ObjectReader::Create(json::array(), "plan.json")),
            "plan.json: expected an object, found an array");
}

TEST_F(ReaderTest, FinishNamesAnUnknownKeyAndTheNearestKnownOne) {
  ObjectReader reader = Read(R"({"latency": 1, "latnecy": 2})");
  ASSERT_TRUE(reader.RequiredInt64("latency").ok());
  EXPECT_EQ(reader.Finish().message(), "$: unknown key \"latnecy\"; did you mean \"latency\"?");
}

TEST_F(ReaderTest, FinishSuggestsOptionalKeysThatAreAbsent) {
  ObjectReader reader = Read(R"({"latnecy": 2})");
  ASSERT_TRUE(reader.OptionalInt64("latency", 1).ok());
  EXPECT_EQ(reader.Finish().message(), "$: unknown key \"latnecy\"; did you mean \"latency\"?");
}

TEST_F(ReaderTest, FinishListsTheKnownKeysWhenNoneIsNear) {
  ObjectReader reader = Read(R"({"zzz": 2})");
  ASSERT_TRUE(reader.OptionalInt64("latency", 1).ok());
  ASSERT_FALSE(reader.Has("bandwidth"));
  EXPECT_EQ(reader.Finish().message(),
            "$: unknown key \"zzz\"; the known keys are: bandwidth, latency");
}

TEST_F(ReaderTest, KeysListsAndAcceptsThemAll) {
  ObjectReader reader = Read(R"({"b": 1, "a": 2})");
  EXPECT_THAT(reader.Keys(), ElementsAre("a", "b"));
  EXPECT_EQ(reader.Finish(), absl::OkStatus());
}

TEST_F(ReaderTest, PathsNameNestedValues) {
  ObjectReader reader = Read(R"({"stages": [{}, {"odd key": {"x": "no"}}]})");
  const auto stage = reader.RequiredArray("stages")->Object(1);
  ASSERT_TRUE(stage.ok());
  EXPECT_EQ(stage->path(), "$.stages[1]");
  EXPECT_EQ(MessageOf(ObjectReader(*stage).RequiredObject("odd key")->RequiredInt64("x")),
            "$.stages[1][\"odd key\"].x: expected an integer of 64 bits, found a string");
}

TEST_F(ReaderTest, ErrorNamesThePathOfTheKey) {
  EXPECT_EQ(Read("{}").Error("stages", "must divide layers"),
            absl::InvalidArgumentError("$.stages: must divide layers"));
}

TEST_F(ReaderTest, ArraysReadEveryType) {
  const ArrayReader array = ReadArray(R"([-3, 2.5, "x", [1], {"k": 1}])");
  EXPECT_EQ(*array.Int64(0), -3);
  EXPECT_EQ(*array.Double(1), 2.5);
  EXPECT_EQ(*array.String(2), "x");
  EXPECT_EQ(array.Array(3)->path(), "$.a[3]");
  EXPECT_EQ(array.Object(4)->path(), "$.a[4]");
}

TEST_F(ReaderTest, ArrayErrorsNameTheElement) {
  const ArrayReader array = ReadArray("[1, 2.5]");
  EXPECT_EQ(MessageOf(array.Int64(1)), "$.a[1]: expected an integer of 64 bits, found 2.5");
  EXPECT_EQ(MessageOf(array.Int64(0, {.min = 2})), "$.a[0]: must be at least 2, found 1");
  EXPECT_EQ(array.Error(1, "too odd"), absl::InvalidArgumentError("$.a[1]: too odd"));
}

TEST_F(ReaderTest, ArrayIndexBeyondTheEndAborts) {
  const ArrayReader array = ReadArray("[1, 2]");
  EXPECT_DEATH(static_cast<void>(array.Int64(2)), "\\$.a\\[2\\] of 2 elements");
}

}  // namespace
}  // namespace stagecoach::base
