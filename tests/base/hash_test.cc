#include "base/hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace stagecoach::base {
namespace {

// The digest is the published XXH3-128 of no input with seed 0.
TEST(Hasher, EmptyInputHasThePublishedDigest) {
  EXPECT_EQ(Hasher().HexDigest(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hasher, DigestDoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  const std::string whole = HashOf(text);
  for (size_t cut = 0; cut <= text.size(); cut += 37) {
    Hasher hasher;
    hasher.Update(absl::string_view(text).substr(0, cut));
    hasher.Update(absl::string_view(text).substr(cut));
    EXPECT_EQ(hasher.HexDigest(), whole) << "cut at " << cut;
  }
}

TEST(Hasher, DigestDependsOnEveryByte) {
  const std::string text(300, 'x');
  const std::string digest = HashOf(text);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = 'y';
    EXPECT_NE(HashOf(changed), digest) << "byte " << i;
  }
}

TEST(Hasher, ValuesHashAsTheirBytes) {
  Hasher hasher;
  hasher.UpdateValue(uint32_t{0x61616161});
  EXPECT_EQ(hasher.HexDigest(), HashOf("aaaa"));
}

TEST(Hasher, UpdatesMayFollowADigest) {
  Hasher hasher;
  hasher.Update("ab");
  EXPECT_EQ(hasher.HexDigest(), HashOf("ab"));
  hasher.Update("cd");
  EXPECT_EQ(hasher.HexDigest(), HashOf("abcd"));
}

}  // namespace
}  // namespace stagecoach::base
