#include "kernels/cuda/tuning/tuning_table.h"

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::kernels::tuning_table_test {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Choice kFirst = {{"id", 66}, {"tile", 20}, {"lowest", INT64_MIN}};
const Choice kSecond = {{"id", 67}};

bool IsKnown(const Choice&) { return true; }

class Tuning : public ::testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "tuning.json").string(); }
  // Returns another name of the same file, and so another table: as another process has.
  std::string other_path() const { return (folder_.path() / "." / "tuning.json").string(); }

  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const { std::ofstream(path()) << text; }

  // Chooses `choice`, unless there is a choice already.
  static absl::StatusOr<Choice> Choose(const std::string& path, const std::string& key,
                                       const Choice& choice) {
    ASSIGN_OR_RETURN(const std::shared_ptr<TuningTable> table, TuningTable::Open(path));
    return table->Choose(key, IsKnown, [&]() -> absl::StatusOr<Choice> { return choice; });
  }

 private:
  const testing::TestFolder folder_;
};

MATCHER_P(Holds, expected, "") { return arg.ok() && *arg == expected; }

TEST_F(Tuning, ChoosesWhatWasMeasured) { EXPECT_THAT(Choose(path(), "a", kFirst), Holds(kFirst)); }

TEST_F(Tuning, MeasuresAKeyOnce) {
  ASSERT_OK_AND_ASSIGN(const auto table, TuningTable::Open(path()));
  int measured = 0;
  const auto measure = [&]() -> absl::StatusOr<Choice> {
    ++measured;
    return kFirst;
  };
  EXPECT_THAT(table->Choose("a", IsKnown, measure), Holds(kFirst));
  EXPECT_THAT(table->Choose("a", IsKnown, measure), Holds(kFirst));
  EXPECT_EQ(measured, 1);
}

TEST_F(Tuning, KeepsChoicesOfDifferentKeysApart) {
  EXPECT_THAT(Choose(path(), "a", kFirst), Holds(kFirst));
  EXPECT_THAT(Choose(path(), "b", kSecond), Holds(kSecond));
  EXPECT_THAT(Choose(path(), "a", kSecond), Holds(kFirst));
}

TEST_F(Tuning, KeepsEveryNumberInTheFile) {
  ASSERT_OK(Choose(path(), "a", kFirst));
  // The first table no longer exists: what it knew is read again.
  EXPECT_THAT(Choose(path(), "a", kSecond), Holds(kFirst));
}

TEST_F(Tuning, MeasuresAnewWhatIsNotKnown) {
  ASSERT_OK(Choose(path(), "a", kFirst));
  ASSERT_OK(Choose(path(), "b", kFirst));
  const auto choose = [&](const std::string& path) -> absl::StatusOr<Choice> {
    ASSIGN_OR_RETURN(const std::shared_ptr<TuningTable> table, TuningTable::Open(path));
    return table->Choose(
        "a", [](const Choice& choice) { return choice != kFirst; },
        []() -> absl::StatusOr<Choice> { return kSecond; });
  };
  ASSERT_OK_AND_ASSIGN(const auto other, TuningTable::Open(other_path()));
  EXPECT_THAT(choose(path()), Holds(kSecond));
  EXPECT_THAT(Choose(path(), "a", kFirst), Holds(kSecond)) << "the file has it";
  EXPECT_THAT(choose(other_path()), Holds(kSecond)) << "as another process has chosen meanwhile";
  EXPECT_THAT(Choose(path(), "b", kSecond), Holds(kFirst));
}

TEST_F(Tuning, IsOneTableForAllWhoOpenAPath) {
  ASSERT_OK_AND_ASSIGN(const auto one, TuningTable::Open(path()));
  ASSERT_OK_AND_ASSIGN(const auto other, TuningTable::Open(path()));
  EXPECT_EQ(one, other);
}

TEST_F(Tuning, TakesAChoiceThatAnotherProcessMadeMeanwhile) {
  ASSERT_OK_AND_ASSIGN(const auto table, TuningTable::Open(path()));
  ASSERT_OK(Choose(other_path(), "a", kFirst));
  EXPECT_THAT(Choose(path(), "a", kSecond), Holds(kFirst));
}

TEST_F(Tuning, DoesNotLoseWhatAnotherProcessWrote) {
  ASSERT_OK_AND_ASSIGN(const auto table, TuningTable::Open(path()));
  ASSERT_OK(Choose(other_path(), "a", kFirst));
  ASSERT_OK(Choose(path(), "b", kSecond));
  EXPECT_THAT(Choose(other_path(), "a", kSecond), Holds(kFirst));
}

TEST_F(Tuning, LetsOnlyOneOfManyThreadsAndTablesMeasure) {
  std::atomic<int> measured = 0;
  std::vector<Choice> choices(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < choices.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto table = TuningTable::Open(i % 2 == 0 ? path() : other_path());
      STAGECOACH_CHECK_OK(table);
      const auto choice = (*table)->Choose("a", IsKnown, [&]() -> absl::StatusOr<Choice> {
        ++measured;
        return Choice{{"i", static_cast<int64_t>(i)}};
      });
      STAGECOACH_CHECK_OK(choice);
      choices[i] = *choice;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(measured, 1);
  EXPECT_THAT(choices, ::testing::Each(choices[0]));
}

TEST_F(Tuning, DoesNotKeepAFailedMeasurement) {
  ASSERT_OK_AND_ASSIGN(const auto table, TuningTable::Open(path()));
  EXPECT_THAT(table->Choose("a", IsKnown,
                            []() -> absl::StatusOr<Choice> { return absl::InternalError("no"); }),
              StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(Choose(path(), "a", kSecond), Holds(kSecond));
}

TEST_F(Tuning, FailsWhereItCannotKeepAChoice) {
  EXPECT_THAT(Choose(path() + "/nowhere/tuning.json", "a", kFirst),
              ::testing::Not(::stagecoach::testing::IsOk()));
}

TEST_F(Tuning, SaysWhichFileIsDamaged) {
  ASSERT_OK(Choose(path(), "a", kFirst));
  Write(absl::StrReplaceAll(Read(), {{": 20", ": \"20\""}}));
  EXPECT_THAT(TuningTable::Open(path()),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path()), HasSubstr("tile"))));
}

class TuningRefusal : public Tuning, public ::testing::WithParamInterface<const char*> {};

TEST_P(TuningRefusal, LeavesTheFileAsItIs) {
  Write(GetParam());
  EXPECT_THAT(TuningTable::Open(path()), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(Read(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Texts, TuningRefusal,
    ::testing::Values(
        "", "not JSON", "{}", R"({"format": "stagecoach-plan", "version": 1, "choices": {}})",
        R"({"format": "stagecoach-tuning", "version": 1, "choices": {}})",
        R"({"format": "stagecoach-tuning", "version": 2})",
        R"({"format": "stagecoach-tuning", "version": 2, "choices": {"a": 1}})",
        R"({"format": "stagecoach-tuning", "version": 2, "choices": {"a": {"id": 1.5}}})",
        R"({"format": "stagecoach-tuning", "version": 2, "choices": {"a": {"id": "1"}}})"));

TEST_F(Tuning, NoticesAFileThatWasDamagedAfterItWasOpened) {
  ASSERT_OK_AND_ASSIGN(const auto table, TuningTable::Open(path()));
  Write("damaged");
  EXPECT_THAT(Choose(path(), "a", kFirst), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(Read(), "damaged");
}

}  // namespace
}  // namespace stagecoach::kernels::tuning_table_test
