#include "base/text/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace stagecoach::base {
namespace {

using ::nlohmann::json;
using ::testing::StartsWith;

std::string TomlErrorOf(absl::string_view text, const JsonLimits& limits = {}) {
  return std::string(ParseToml(text, limits).status().message());
}

// Returns "a.a.a = 1" with `segments` segments.
std::string DottedKey(int segments) {
  std::string key = "a";
  for (int i = 1; i < segments; ++i) key += ".a";
  return key;
}

TEST(ParseToml, GivesTheJsonOfTheSameShape) {
  const auto parsed = ParseToml(R"(
name = "gpt"
rate = 2.5
on = true
sizes = [1, -2]
[model]
layers = 12
inner.x = {y = 'z'}
[[stage]]
id = 0
[[stage]]
id = 1
)");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, json::parse(R"({
    "name": "gpt", "rate": 2.5, "on": true, "sizes": [1, -2],
    "model": {"layers": 12, "inner": {"x": {"y": "z"}}},
    "stage": [{"id": 0}, {"id": 1}]})"));
}

TEST(ParseToml, AnEmptyDocumentIsAnEmptyObject) { EXPECT_EQ(*ParseToml(""), json::object()); }

TEST(ParseToml, KeepsIntegersAndDoublesApart) {
  const auto parsed = ParseToml("i = 3\nd = 3.0");
  EXPECT_TRUE((*parsed)["i"].is_number_integer());
  EXPECT_TRUE((*parsed)["d"].is_number_float());
}

TEST(ParseToml, ErrorsCarryLineAndColumn) {
  EXPECT_THAT(TomlErrorOf("a = 1\nb = = 2"), StartsWith("2:5: "));
  EXPECT_THAT(TomlErrorOf("a = 1\na = 2"), StartsWith("2:5: "));
  EXPECT_THAT(TomlErrorOf("a = 9223372036854775808"), StartsWith("1:"));
  EXPECT_THAT(TomlErrorOf("a = \"\xff\""), StartsWith("1:"));
}

TEST(ParseToml, RefusesTableHeadersThatAreNoKeys) {
  for (const char* text : {"[=]", "[.a]", "[[=]]", "[#]", "[\n]", "[{}]", "[,", "[a.=]", "[[["}) {
    EXPECT_EQ(ParseToml(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseToml, RefusesLettersBeyondAsciiOutsideStrings) {
  for (const char* text :
       {"a = é", "é = 1", "a é = 1", "a = [é]", "[é]", "a = 1 é", "a = \"\"\"\\é\"\"\""}) {
    EXPECT_EQ(ParseToml(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseToml, KeepsLettersBeyondAsciiInStrings) {
  EXPECT_EQ((*ParseToml("a = \"\"\"x\\\n  é\"\"\" # é"))["a"], "xé");
  EXPECT_EQ((*ParseToml("'é' = 'ж'"))["é"], "ж");
}

TEST(ParseToml, RefusesWhatJsonCannotHold) {
  EXPECT_THAT(TomlErrorOf("x = 1\na = inf"), StartsWith("2:5: inf and nan"));
  EXPECT_THAT(TomlErrorOf("a = [-nan]"), StartsWith("1:6: inf and nan"));
  for (const char* value : {"2026-01-01", "12:30:00", "2026-01-01T12:30:00Z"}) {
    EXPECT_THAT(TomlErrorOf(absl::StrCat("a = ", value)), StartsWith("1:5: dates and times"))
        << value;
  }
}

TEST(ParseToml, HoldsTheSizeLimit) {
  EXPECT_TRUE(ParseToml("a = 1", {.max_bytes = 5}).ok());
  EXPECT_EQ(ParseToml("a = 12", {.max_bytes = 5}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ParseToml, HoldsTheDepthLimit) {
  EXPECT_TRUE(ParseToml("a = [[1]]", {.max_depth = 3}).ok());
  EXPECT_EQ(TomlErrorOf("x = 1\na = [[1]]", {.max_depth = 2}),
            "2:6: nested deeper than the limit of 2 levels");
}

TEST(ParseToml, HoldsTheDepthLimitForDottedKeys) {
  EXPECT_TRUE(ParseToml(DottedKey(64) + " = 1").ok());
  EXPECT_EQ(TomlErrorOf("x = 1\n" + DottedKey(65) + " = 1"),
            "2:128: nested deeper than the limit of 64 levels");
  EXPECT_EQ(TomlErrorOf("[" + DottedKey(65) + "]"),
            "1:129: nested deeper than the limit of 64 levels");
}

TEST(ParseToml, SurvivesMillionsOfLevels) {
  const std::string brackets(1'000'000, '[');
  for (const std::string& text :
       {"a = " + brackets, brackets, DottedKey(1'000'000) + " = 1",
        "[" + DottedKey(1'000'000) + "]", "x = {" + DottedKey(1'000'000) + " = 1}"}) {
    EXPECT_FALSE(ParseToml(text).ok()) << text.substr(0, 10);
  }
}

// Each string would hide a long key from a count of dots that mistook its bounds.
TEST(ParseToml, FindsLongKeysBehindStringsOfEveryKind) {
  const std::string key = DottedKey(100'000) + " = 1\n";
  for (const char* prefix :
       {"x = \"\"\n", "x = ''\n", "x = \"\\\"\"\n", "x = \"\\\\\"\n", "x = '\\'\n",
        "x = \"\"\"\"\"\"\n", "x = \"\"\"a\"\"\"\"\"\n", "x = '''a'''''\n",
        "x = \"\"\"\\\"\"\"\"\n", "x = '''\n\"'''\n", "# \"\n", "'\"'.\"'\".", "\"=\".'['."}) {
    EXPECT_EQ(ParseToml(prefix + key).status().code(), absl::StatusCode::kResourceExhausted)
        << prefix;
  }
}

TEST(ParseToml, DotsInStringsAndCommentsAreNoLevels) {
  const std::string dots(1000, '.');
  for (const std::string& text :
       {"a = \"" + dots + "\"", "a = '" + dots + "'", "a = \"\"\"" + dots + "\n" + dots + "\"\"\"",
        "a = '''" + dots + "'''", "a = 1 # " + dots, "\"" + dots + "\" = 1"}) {
    EXPECT_TRUE(ParseToml(text).ok()) << ParseToml(text).status();
  }
}

TEST(ParseToml, DotsOfManyNumbersAreNoLevels) {
  std::string text = "a = [";
  for (int i = 0; i < 1000; ++i) text += "1.5, ";
  EXPECT_EQ((*ParseToml(text + "]"))["a"].size(), 1000);
}

}  // namespace
}  // namespace stagecoach::base
