#include "base/text/line.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text/json.h"
#include "base/text/toml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::base {
namespace {

using ::testing::StartsWith;

auto SaysFirst(const std::string& start) { return testing::IsRefused(StartsWith(start)); }

constexpr absl::string_view kJson = R"({
  "layers": [
    {"name": "a", "forward_ms": 1.5,
     "sizes": [1, 2,
               3]},
    7,
    {
      "name": "},{[\"",
      "odd \"key\".[0]": {"x": null}
    }
  ],
  "caf\u00e9": [[], [[], 4]
  ]
})";

std::string JsonLine(absl::string_view message, absl::string_view text = kJson) {
  return std::string(WithJsonPlace(absl::InvalidArgumentError(message), text).message());
}

TEST(Line, OfAKeyOrAnElementInJson) {
  EXPECT_EQ(JsonLine("$: expected"), "1:1: $: expected");
  EXPECT_EQ(JsonLine("$.layers: expected"), "2:3: $.layers: expected");
  EXPECT_EQ(JsonLine("$.layers[0]: expected"), "3:5: $.layers[0]: expected");
  EXPECT_EQ(JsonLine("$.layers[0].forward_ms: expected"), "3:19: $.layers[0].forward_ms: expected");
  EXPECT_THAT(JsonLine("$.layers[0].sizes: x"), StartsWith("4:6: $"));
  EXPECT_THAT(JsonLine("$.layers[0].sizes[1]: x"), StartsWith("4:19: $"));
  EXPECT_THAT(JsonLine("$.layers[0].sizes[2]: x"), StartsWith("5:16: $"));
  EXPECT_THAT(JsonLine("$.layers[1]: x"), StartsWith("6:5: $"));
  EXPECT_THAT(JsonLine("$.layers[2].name: x"), StartsWith("8:7: $"));
  EXPECT_THAT(JsonLine("$[\"caf\\303\\251\"][1][1]: x"), StartsWith("12:26: $"));
}

TEST(Line, OfKeysThatNeedQuotes) {
  EXPECT_THAT(JsonLine(R"($.layers[2]["odd \"key\".[0]"].x: x)"), StartsWith("9:27: $"));
}

TEST(Line, OfAnUnknownKeyIsItsOwn) {
  EXPECT_THAT(JsonLine(R"($.layers[0]: unknown key "sizes"; did you mean "size"?)"),
              StartsWith("4:6: $.layers[0]: unknown key"));
}

TEST(Line, OtherErrorsStayAsTheyAre) {
  for (const std::string message :
       {"", "model.toml: no such file", "$", "$.layers", "$.layers[7]: x", "$.nothing: x",
        "$.layers.name: x", "$[0]: x", "$.layers[-1]: x", "$.layers[1: x", "$[\"a: x"}) {
    EXPECT_EQ(JsonLine(message), message);
    EXPECT_EQ(WithTomlPlace(absl::InvalidArgumentError(message), "a = 1").message(), message);
  }
  EXPECT_OK(WithJsonPlace(absl::OkStatus(), kJson));
  EXPECT_OK(WithTomlPlace(absl::OkStatus(), ""));
  // These texts are invalid, but do no harm.
  for (const absl::string_view text : {"", "{\"a", "{\"a\\", "]}\"\\", "[,", "{{{"}) {
    EXPECT_EQ(JsonLine("$.a.b[0]: x", text), "$.a.b[0]: x");
  }
}

TEST(Line, KeepsTheCode) {
  EXPECT_EQ(WithJsonPlace(absl::DataLossError("$.layers: x"), kJson).code(),
            absl::StatusCode::kDataLoss);
}

// The messages come from the readers themselves.
TEST(Line, OfWhatAReaderSays) {
  ASSERT_OK_AND_ASSIGN(const nlohmann::json parsed, ParseJson(kJson));
  ASSERT_OK_AND_ASSIGN(ObjectReader reader, ObjectReader::Create(parsed));
  ASSERT_OK_AND_ASSIGN(ArrayReader layers, reader.RequiredArray("layers"));
  ASSERT_OK_AND_ASSIGN(ObjectReader layer, layers.Object(2));
  EXPECT_THAT(WithJsonPlace(layer.RequiredInt64("name").status(), kJson),
              SaysFirst("8:7: $.layers[2].name: expected"));
  EXPECT_THAT(WithJsonPlace(layer.RequiredInt64("nam").status(), kJson),
              SaysFirst("7:5: $.layers[2]: the key \"nam\" is missing"));
  EXPECT_THAT(WithJsonPlace(layer.Finish(), kJson),
              SaysFirst("9:7: $.layers[2]: unknown key \"odd"));
  EXPECT_THAT(WithJsonPlace(reader.Finish(), kJson), SaysFirst("12:3: $: unknown"));
}

TEST(Line, InToml) {
  constexpr absl::string_view kToml = R"(version = 1

[[group]]
name = "a"
sizes = [1,
         2]
[[group]]
"odd key" = 1
[links]
within = {latency = 1, bytes = 2}
dotted.key = 3
)";
  const auto line = [&](absl::string_view message) {
    return std::string(WithTomlPlace(absl::InvalidArgumentError(message), kToml).message());
  };
  EXPECT_EQ(line("$: x"), "1:1: $: x");
  EXPECT_THAT(line("$.version: x"), StartsWith("1:1: "));
  EXPECT_THAT(line("$.group[0].name: x"), StartsWith("4:1: "));
  EXPECT_THAT(line("$.group[0].sizes[1]: x"), StartsWith("6:10: "));
  EXPECT_THAT(line("$.group[1]: the key \"name\" is missing"), StartsWith("7:1: "));
  EXPECT_THAT(line("$.group[1]: unknown key \"odd key\"; x"), StartsWith("8:1: "));
  EXPECT_THAT(line("$.links: x"), StartsWith("9:2: "));
  EXPECT_THAT(line("$.links.dotted.key: x"), StartsWith("11:8: "));
  EXPECT_EQ(line("$.group.name: x"), "$.group.name: x");
  EXPECT_EQ(line("$.group[2]: x"), "$.group[2]: x");
}

TEST(InFile, PutsAPlaceBehindThePath) {
  const auto in_file = [](absl::string_view message) {
    return std::string(InFile(absl::DataLossError(message), "a/b.toml").message());
  };
  EXPECT_EQ(in_file("12: no"), "a/b.toml:12: no");
  EXPECT_EQ(in_file("12:3: no"), "a/b.toml:12:3: no");
  EXPECT_EQ(in_file("$.x: no"), "a/b.toml: $.x: no");
  EXPECT_EQ(in_file("12 and more"), "a/b.toml: 12 and more");
  EXPECT_EQ(InFile(absl::DataLossError("1:2: no"), "-").message(), "standard input:1:2: no");
  EXPECT_EQ(InFile(absl::DataLossError("no"), "a").code(), absl::StatusCode::kDataLoss);
  EXPECT_OK(InFile(absl::OkStatus(), "a"));
}

}  // namespace
}  // namespace stagecoach::base
