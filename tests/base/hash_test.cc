#include "base/hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace stagecoach::base {
namespace {

void UpdateText(Hasher& hasher, absl::string_view text) {
  hasher.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

std::string DigestOf(absl::string_view text) {
  Hasher hasher;
  UpdateText(hasher, text);
  return hasher.HexDigest();
}

// The published XXH3-128 of no input with seed 0.
TEST(Hasher, EmptyInputHasThePublishedDigest) {
  EXPECT_EQ(Hasher().HexDigest(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hasher, DigestDoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  const std::string whole = DigestOf(text);
  for (size_t cut = 0; cut <= text.size(); cut += 37) {
    Hasher hasher;
    UpdateText(hasher, absl::string_view(text).substr(0, cut));
    UpdateText(hasher, absl::string_view(text).substr(cut));
    EXPECT_EQ(hasher.HexDigest(), whole) << "cut at " << cut;
  }
}

TEST(Hasher, DigestDependsOnEveryByte) {
  const std::string text(300, 'x');
  const std::string digest = DigestOf(text);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = 'y';
    EXPECT_NE(DigestOf(changed), digest) << "byte " << i;
  }
}

TEST(Hasher, ValuesHashAsTheirBytes) {
  Hasher hasher;
  hasher.UpdateValue(uint32_t{0x61616161});
  EXPECT_EQ(hasher.HexDigest(), DigestOf("aaaa"));
}

TEST(Hasher, UpdatesMayFollowADigest) {
  Hasher hasher;
  UpdateText(hasher, "ab");
  EXPECT_EQ(hasher.HexDigest(), DigestOf("ab"));
  UpdateText(hasher, "cd");
  EXPECT_EQ(hasher.HexDigest(), DigestOf("abcd"));
}

}  // namespace
}  // namespace stagecoach::base
