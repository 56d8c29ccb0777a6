#include "base/text/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace stagecoach::base {
namespace {

using Kind = Utf8Front::Kind;

TEST(Utf8Prefix, EndsWhereACharacterIsNone) {
  EXPECT_EQ(Utf8Prefix("twelve bytes\xFF and more"), 12);
  EXPECT_EQ(Utf8Prefix("cut \xE2\x82"), 4);
  EXPECT_EQ(Utf8Prefix(""), 0);
}

TEST(FrontOf, TellsWhatMayGoOnFromWhatMayNot) {
  const auto expect = [](const std::string& text, Kind kind, size_t bytes) {
    const Utf8Front front = FrontOf(text);
    EXPECT_EQ(front.kind, kind) << text;
    EXPECT_EQ(front.bytes, bytes) << text;
  };
  expect("a\xFF", Kind::kCharacter, 1);
  expect("\xF0\x9F\x90\x9D!", Kind::kCharacter, 4);
  expect("\xF0\x9F\x90", Kind::kCut, 3);
  expect("\xE2", Kind::kCut, 1);
  expect("\xF0\x9F\x90!", Kind::kInvalid, 3);
  expect("\xED\xA0\x80", Kind::kInvalid, 1);  // a surrogate
  expect("\x80", Kind::kInvalid, 1);
}

// Checks against the ranges of the standard, spelled out: every code point, and no overlong form.
TEST(FrontOf, TakesEveryCodePointOnce) {
  int characters = 0;
  for (uint32_t lead = 0; lead < 0x100; ++lead) {
    for (uint32_t second = 0; second < 0x100; ++second) {
      const std::string text = {static_cast<char>(lead), static_cast<char>(second), '\x80', '\x80'};
      const Utf8Front front = FrontOf(text);
      if (front.kind != Kind::kCharacter) continue;
      // Each of the last bytes, which are not tried, has 64 values.
      characters += front.bytes == 1 ? (second == 0 ? 1 : 0) : 1 << (6 * (front.bytes - 2));
    }
  }
  EXPECT_EQ(characters, 0x110000 - 0x800);
}

}  // namespace
}  // namespace stagecoach::base
