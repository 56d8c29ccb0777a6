#include "tools/stagecoach/terminal/messages.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text/utf8.h"
#include "gtest/gtest.h"
#include "tests/tools/scoped_variable.h"
#include "tools/stagecoach/terminal/exit_status.h"

namespace stagecoach::tools {
namespace {

// Returns what a process writes on stderr while `write` runs.
template <typename F>
std::string Errors(F write) {
  ::testing::internal::CaptureStderr();
  write();
  return ::testing::internal::GetCapturedStderr();
}

std::string ErrorLine(const std::string& message) {
  return Errors([&] { Fail("train", absl::InternalError(message)); });
}

TEST(Messages, OfOneProcessHaveNoRank) {
  EXPECT_EQ(ErrorLine("no"), "stagecoach train: no\n");
  EXPECT_EQ(Errors([] { PrintNotice("well"); }), "stagecoach: well\n");
}

TEST(Messages, AreTextWhateverTheyQuote) {
  EXPECT_EQ(Printable("a\nb \xc3\xa4\x7e"), "a\nb \xc3\xa4\x7e");
  EXPECT_EQ(Printable("\x1b[2J\t\x7f\xff"), "\\x1b[2J\\t\\x7f\\xff");
  EXPECT_EQ(Printable("\xc2\x9b\xc2\xa0"), "\\xc2\\x9b\xc2\xa0");  // U+009B, which acts as ESC [
  EXPECT_EQ(ErrorLine("\x1b"), "stagecoach train: \\x1b\n");
}

TEST(Messages, CutLongValuesAndSayTheirLength) {
  EXPECT_EQ(
      Printable(absl::StrCat("--train-samples: \"", std::string(100'000, 'b'), "\" is no number")),
      absl::StrCat("--train-samples: \"", std::string(149, 'b'), "…(100002 bytes)…",
                   std::string(49, 'b'), "\" is no number"));
  std::string umlauts, words;
  for (int i = 0; i < 1000; ++i) umlauts += "\xc3\xa4", words += "word ";
  EXPECT_EQ(base::Utf8Prefix(Printable("x" + umlauts)), Printable("x" + umlauts).size());
  EXPECT_EQ(Printable(words),
            words.substr(0, 1000) + "…(5000 bytes)…" + words.substr(words.size() - 500));
  EXPECT_EQ(Printable(std::string(300, 'b')), std::string(300, 'b'));
}

TEST(Messages, OfSeveralProcessesBeginWithTheRank) {
  const ScopedVariable rank("STAGECOACH_RANK", "2");
  const ScopedVariable ranks("STAGECOACH_RANKS", "12");
  EXPECT_EQ(ErrorLine("no"), "stagecoach train: rank 2: no\n");
  EXPECT_EQ(ErrorLine("rank 1: no"), "stagecoach train: rank 2: rank 1: no\n");
}

TEST(Messages, NameTheRankOnce) {
  const ScopedVariable rank("STAGECOACH_RANK", "1");
  const ScopedVariable ranks("STAGECOACH_RANKS", "12");
  EXPECT_EQ(ErrorLine("rank 1: no"), "stagecoach train: rank 1: no\n");
  EXPECT_EQ(ErrorLine("rank 1, F: no"), "stagecoach train: rank 1, F: no\n");
  EXPECT_EQ(ErrorLine("rank 11: no"), "stagecoach train: rank 1: rank 11: no\n");
}

TEST(Messages, OnceForTheRunAreThoseOfRankZero) {
  const ScopedVariable ranks("STAGECOACH_RANKS", "2");
  {
    const ScopedVariable rank("STAGECOACH_RANK", "0");
    EXPECT_EQ(Errors([] { PrintNotice("well"); }), "stagecoach: well\n");
  }
  const ScopedVariable rank("STAGECOACH_RANK", "1");
  EXPECT_EQ(Errors([] { PrintNotice("well"); }), "");
}

TEST(Messages, OfContradictingVariablesHaveNoRank) {
  const ScopedVariable rank("STAGECOACH_RANK", "2");
  const ScopedVariable ranks("STAGECOACH_RANKS", "2");
  EXPECT_EQ(ErrorLine("no"), "stagecoach train: no\n");
}

}  // namespace
}  // namespace stagecoach::tools
