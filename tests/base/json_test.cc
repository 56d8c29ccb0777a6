#include "base/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace stagecoach::base {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(absl::string_view text, const JsonLimits& limits = {}) {
  return std::string(ParseJson(text, limits).status().message());
}

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const auto parsed =
      ParseJson(R"( {"a": [1, -2, 2.5, true, false, null], "b": {"c": "\u00e9x"}} )");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  json expected;
  expected["a"] = {1, -2, 2.5, true, false, nullptr};
  expected["b"]["c"] = "éx";
  EXPECT_EQ(*parsed, expected);
}

TEST(ParseJson, ReadsScalarsAndEmptyContainers) {
  EXPECT_EQ(*ParseJson("3"), json(3));
  EXPECT_EQ(*ParseJson("\"\""), json(""));
  EXPECT_EQ(*ParseJson("[]"), json::array());
  EXPECT_EQ(*ParseJson("{}"), json::object());
  EXPECT_EQ(*ParseJson("[[],{},[{}]]"),
            json::array({json::array(), json::object(), json::array({json::object()})}));
}

TEST(ParseJson, KeepsIntegersExact) {
  EXPECT_EQ(ParseJson("9223372036854775807")->get<int64_t>(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ParseJson("-9223372036854775808")->get<int64_t>(), std::numeric_limits<int64_t>::min());
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text :
       {"",           " ",         "{",    "[1,]", "{\"a\":1,}", "{\"a\" 1}", "{a: 1}",
        "'a'",        "01",        "+1",   "1.",   ".5",         "nan",       "NaN",
        "Infinity",   "-Infinity", "tru",  "\"a",  "\"\t\"",     "\"\\x\"",   "// c\n1",
        "[1 2]",      "1 2",       "{} x", "[]]",  "\xff",       "\"\xc3\"",  "\"\xed\xa0\x80\"",
        "\"\\ud800\""}) {
    EXPECT_EQ(ParseJson(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseJson, RefusesANulByteInsteadOfStoppingAtIt) {
  EXPECT_EQ(ErrorOf(absl::string_view("[1]\n\0garbage", 12)), "2:1: NUL byte");
}

TEST(ParseJson, RefusesNumbersBeyondDouble) {
  EXPECT_EQ(ErrorOf("[1,\n 1e400]"), "2:6: the number does not fit in a double");
}

TEST(ParseJson, ErrorsCarryLineAndColumn) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"x", "1:1: "}, {"[1,\n2,\n  x]", "3:3: "}, {"{\n  \"a\": }", "2:8: "}, {"[1", "1:3: "},
      {"", "1:1: "},  {"[1] 2", "1:5: "},
  };
  for (const auto& [text, location] : cases) EXPECT_THAT(ErrorOf(text), StartsWith(location));
}

TEST(ParseJson, ErrorsDoNotQuoteTheInput) {
  const std::string message = ErrorOf("\"" + std::string(100'000, 'x') + "\xff");
  EXPECT_THAT(message, HasSubstr("UTF-8"));
  EXPECT_LT(message.size(), 200);
}

TEST(ParseJson, RefusesDuplicateKeysWhereTheyStart) {
  EXPECT_EQ(ErrorOf("{\"a\": 1,\n  \"a\": 2}"), "2:3: duplicate key \"a\"");
  EXPECT_EQ(ErrorOf(R"({"q\"\\": 1, "q\"\\" : 2})"), R"(1:14: duplicate key "q\"\\")");
  EXPECT_EQ(ErrorOf(R"({"": 1, "": 2})"), "1:9: duplicate key \"\"");
}

TEST(ParseJson, AllowsOneKeyInDifferentObjects) {
  EXPECT_TRUE(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]})").ok());
}

TEST(ParseJson, HoldsTheDepthLimit) {
  EXPECT_TRUE(ParseJson(Nested(64)).ok());
  EXPECT_EQ(ErrorOf(Nested(65)), "1:65: nested deeper than the limit of 64 levels");
  EXPECT_TRUE(ParseJson("1", {.max_depth = 0}).ok());
  EXPECT_EQ(ParseJson("{}", {.max_depth = 0}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ParseJson, SurvivesMillionsOfLevels) {
  EXPECT_EQ(ParseJson(std::string(5'000'000, '[')).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ParseJson, HoldsTheSizeLimit) {
  EXPECT_TRUE(ParseJson("[1]", {.max_bytes = 3}).ok());
  EXPECT_EQ(ParseJson("[1] ", {.max_bytes = 3}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ParseJson, ReadsBackWhatItPrints) {
  const std::string text =
      R"({"a":[1,2.5,-3,"x\ny",{"b":[]}],"c":1e-300,"d":18446744073709551615})";
  const json parsed = *ParseJson(text);
  EXPECT_EQ(*ParseJson(parsed.dump()), parsed);
}

TEST(IsUtf8, TakesTextThatJsonCanHold) {
  for (const char* text : {"", "plain",
                           "gr\xC3\xB6\xC3\x9F"
                           "e",
                           "\xE2\x82\xAC", "\xF0\x9F\x90\x9D"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text : {"\xFF", "cut \xC3", "\xC0\xAF", "\xED\xA0\x80", "\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

}  // namespace
}  // namespace stagecoach::base
