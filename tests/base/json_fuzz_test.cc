#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "base/random.h"
#include "base/text/json.h"
#include "base/text/toml.h"

namespace stagecoach::base {
namespace {

using namespace std::string_literals;

constexpr int kMutants = 20'000;

// Draws one number after another from a stream.
class Dice {
 public:
  explicit Dice(uint64_t stream) : random_(20260101, stream) {}
  uint64_t Below(uint64_t n) { return random_.Below(next_++, n); }

 private:
  RandomStream random_;
  uint64_t next_ = 0;
};

// Makes a few random edits: changed, inserted, removed and repeated bytes, mostly those with a
// meaning.
std::string Mutate(std::string text, Dice& dice) {
  const std::string meaningful = "{}[]\",:.=#'\\\n-+eE0x\0\xff\xc3"s;
  for (uint64_t edits = 1 + dice.Below(6); edits > 0; --edits) {
    const size_t at = dice.Below(text.size() + 1);
    const char byte = dice.Below(4) == 0 ? static_cast<char>(dice.Below(256))
                                         : meaningful[dice.Below(meaningful.size())];
    switch (dice.Below(4)) {
      case 0:
        text.insert(at, dice.Below(3) == 0 ? 80 : 1, byte);
        break;
      case 1:
        text.erase(at, 1 + dice.Below(3));
        break;
      case 2:
        text.insert(at, text.substr(at / 2, dice.Below(20)));
        break;
      default:
        if (at < text.size()) text[at] = byte;
    }
  }
  return text;
}

// Reads every value as its own type and as others, which must fail without harm.
void ReadAll(const nlohmann::json& value) {
  const auto object = ObjectReader::Create(value);
  if (object.ok()) {
    ObjectReader reader = *object;
    for (const std::string& key : reader.Keys()) {
      EXPECT_EQ(reader.RequiredInt64(key).ok() && reader.RequiredString(key).ok(), false);
      ReadAll(value[key]);
    }
    EXPECT_EQ(reader.Finish(), absl::OkStatus());
  }
  const auto array = ArrayReader::Create(value);
  if (array.ok()) {
    for (size_t i = 0; i < array->size(); ++i) {
      EXPECT_EQ(array->String(i).ok() && array->Double(i).ok(), false);
      ReadAll(value[i]);
    }
  }
}

TEST(ParseJsonFuzz, MutantsAreRefusedWithALocationOrReadBackAsPrinted) {
  const std::vector<std::string> seeds = {
      R"({"stages": [{"layers": [0, 12], "device": "cpu:0"}, {"layers": [12, 24]}], "x": 1e-3})",
      R"([[[[[[1, -2.5e10, "\u00e9\ud83d\ude00\\\""], {}], true], false], null], {"a": {}}])",
      "{\n  \"name\": \"gpt\",\n  \"heads\": 12,\n  \"rates\": [0.1, 0.2, 1E+5]\n}\n"};
  int accepted = 0;
  for (uint64_t i = 0; i < kMutants; ++i) {
    Dice dice(i);
    const std::string text = Mutate(seeds[i % seeds.size()], dice);
    const auto parsed = ParseJson(text);
    if (parsed.ok()) {
      ++accepted;
      EXPECT_EQ(*ParseJson(parsed->dump()), *parsed) << absl::CHexEscape(text);
      ReadAll(*parsed);
    } else {
      EXPECT_TRUE(absl::ascii_isdigit(parsed.status().message()[0])) << parsed.status();
    }
  }
  EXPECT_GT(accepted, kMutants / 100);
}

TEST(ParseTomlFuzz, MutantsAreRefusedWithALocationOrAreJson) {
  const std::vector<std::string> seeds = {
      "title = 'x' # c\n[model]\nlayers = 12\nrates = [0.1, 2e-3]\n[[stage]]\ndevice.id = 0\n",
      "a.b.\"c.d\" = {x = 1, y = [[1], [\"\"\"two\n\"lines\"\\\n  \"\"\"]]}\n[a.e]\nf = true\n"};
  int accepted = 0;
  for (uint64_t i = 0; i < kMutants; ++i) {
    Dice dice(i);
    const std::string text = Mutate(seeds[i % seeds.size()], dice);
    const auto parsed = ParseToml(text);
    if (parsed.ok()) {
      ++accepted;
      EXPECT_EQ(*ParseJson(parsed->dump()), *parsed) << absl::CHexEscape(text);
      ReadAll(*parsed);
    } else {
      const absl::string_view message = parsed.status().message();
      EXPECT_TRUE(absl::ascii_isdigit(message[0]) || absl::StartsWith(message, "line "))
          << parsed.status();
    }
  }
  EXPECT_GT(accepted, kMutants / 100);
}

}  // namespace
}  // namespace stagecoach::base
