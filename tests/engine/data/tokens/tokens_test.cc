#include "engine/data/tokens/tokens.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/data_fingerprint.h"
#include "engine/data/formats/load.h"
#include "engine/data/tokens/token_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/engine/data/token_files.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kNotFound;
using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using testing::StatusIs;

std::vector<int64_t> Count(int64_t first, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

absl::Span<std::byte> BytesOf(std::vector<int32_t>& values) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()),
                        values.size() * sizeof(int32_t));
}

std::vector<int32_t> InputOf(const Dataset& data, int64_t row) {
  std::vector<int32_t> ids(static_cast<size_t>(data.features()));
  data.CopyInput(0, row, BytesOf(ids));
  return ids;
}

std::vector<int32_t> TargetOf(const Dataset& data, int64_t row) {
  std::vector<int32_t> ids(static_cast<size_t>(data.features()));
  data.CopyTarget(row, BytesOf(ids));
  return ids;
}

std::shared_ptr<const TokenDataset> Make(std::vector<int32_t> ids, int64_t context,
                                         int64_t vocabulary) {
  return TokenDataset::Create(TokenIds::Of(std::move(ids)).value(), context, vocabulary).value();
}

TEST(TokenDataset, RowsAreWindowsAndWhatFollowsThem) {
  const auto data = Make({0, 1, 2, 3, 4, 5, 6, 7, 8}, 3, 9);
  ASSERT_EQ(data->rows(), 2);
  EXPECT_THAT(InputOf(*data, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(TargetOf(*data, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(InputOf(*data, 1), ElementsAre(3, 4, 5));
  EXPECT_THAT(TargetOf(*data, 1), ElementsAre(4, 5, 6));
}

TEST(TokenDataset, TheLastTargetNeedsOneMoreToken) {
  EXPECT_EQ(Make({0, 1, 2, 3, 4, 5}, 3, 6)->rows(), 1);
  EXPECT_EQ(Make({0, 1, 2, 3, 4, 5, 0}, 3, 6)->rows(), 2);
}

TEST(TokenDataset, BeginsItsRowsElsewhereInEachEpoch) {
  constexpr int64_t kContext = 5;
  constexpr int32_t kIds = 43;  // 8 rows, and 2 tokens left over
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < kIds; ++id) ids.push_back(id);
  const auto data = Make(ids, kContext, kIds);
  std::set<int32_t> origins;
  for (int64_t epoch = 1; epoch <= 60; ++epoch) {
    const std::shared_ptr<const Dataset> seen = data->ForEpoch(7, epoch);
    ASSERT_EQ(seen->rows(), data->rows());
    EXPECT_EQ(seen->spec().inputs.front().shape, data->spec().inputs.front().shape);
    const int32_t origin = InputOf(*seen, 0)[0];
    origins.insert(origin);
    for (int64_t row = 0; row < seen->rows(); ++row) {
      const auto begin =
          static_cast<int32_t>(std::min(origin + row * kContext, kIds - 1 - kContext));
      EXPECT_THAT(InputOf(*seen, row),
                  ElementsAre(begin, begin + 1, begin + 2, begin + 3, begin + 4));
      EXPECT_THAT(TargetOf(*seen, row),
                  ElementsAre(begin + 1, begin + 2, begin + 3, begin + 4, begin + 5));
    }
    EXPECT_EQ(InputOf(*data->ForEpoch(7, epoch), 0)[0], origin);
  }
  EXPECT_THAT(origins, ElementsAre(0, 1, 2, 3, 4));
  // A set with one row has one place; the first rows of a set start where all rows do.
  EXPECT_THAT(InputOf(*Make({0, 1, 2, 3}, 3, 4)->ForEpoch(7, 3), 0), ElementsAre(0, 1, 2));
  const auto first = *Subset(data, 3);
  for (int64_t epoch = 1; epoch <= 5; ++epoch) {
    const auto seen = first->ForEpoch(7, epoch);
    EXPECT_EQ(seen->rows(), 3);
    EXPECT_EQ(InputOf(*seen, 2), InputOf(*data->ForEpoch(7, epoch), 2));
  }
}

TEST(TokenDataset, SaysWhatASampleIs) {
  const auto data = Make({0, 1, 2, 3}, 3, 7);
  ASSERT_EQ(data->spec().inputs.size(), 1);
  const TensorSpec& input = data->spec().inputs.front();
  EXPECT_EQ(input.name, "tokens");
  EXPECT_TRUE(input.has_ids());
  EXPECT_EQ(input.shape, kernels::Shape{3});
  EXPECT_EQ(input.vocabulary, 7);
  EXPECT_EQ(
      data->spec().target,
      (TargetSpec{.kind = TargetSpec::Kind::kClasses, .shape = kernels::Shape{3}, .classes = 7}));
  EXPECT_EQ(data->spec().target.answers(), 3);
}

TEST(TokenDataset, RefusesWhatGivesNoRow) {
  const auto create = [](int64_t ids, int64_t context, int64_t vocabulary) {
    return TokenDataset::Create(
        TokenIds::Of(std::vector<int32_t>(static_cast<size_t>(ids), 4)).value(), context,
        vocabulary);
  };
  EXPECT_OK(create(4, 3, 5));
  EXPECT_THAT(create(3, 3, 5), IsRefused("3 tokens, expected at least 4 for a context of 3"));
  EXPECT_THAT(create(0, 3, 5), IsRefused("0 tokens"));
  EXPECT_THAT(create(4, 0, 5), IsRefused("a context of 0"));
  EXPECT_THAT(create(4, 3, 4), IsRefused("a vocabulary of 4, expected one of 5"));
  EXPECT_THAT(create(4, 3, kMaxVocabulary + 1), StatusIs(kInvalidArgument));
}

TEST(HoldsTokens, GoesByNamesAndByWhatADirectoryHolds) {
  for (const char* path : {"a.txt", "b/c.bin", "d.npy"}) EXPECT_TRUE(HoldsTokens(path)) << path;
  for (const char* path : {"a.csv", "synthetic:1x2x3", "", "/no/such"}) {
    EXPECT_FALSE(HoldsTokens(path)) << path;
  }
  const std::string directory = TestDirectory();
  EXPECT_FALSE(HoldsTokens(directory));
  WriteTestFile(directory, "train.bin", "");
  EXPECT_TRUE(HoldsTokens(directory));
}

TEST(LoadTokens, TestsOnTheLastTenthOfAText) {
  // There are 37 bytes, nine tenths of which would be 33.3.
  const std::string text = "abcdefghijklmnopqrstuvwxyz0123456789!";
  ASSERT_OK_AND_ASSIGN(const TrainTest data,
                       LoadTokens(WriteTestFile(TestDirectory(), "a.txt", text), {.context = 3}));
  EXPECT_EQ(data.train->rows(), 10);  // from 33 bytes
  EXPECT_EQ(data.test->rows(), 1);    // from 4 bytes
  EXPECT_THAT(InputOf(*data.train, 0), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(TargetOf(*data.train, 9), ElementsAre('2', '3', '4'));
  EXPECT_THAT(InputOf(*data.test, 0), ElementsAre('7', '8', '9'));
  EXPECT_THAT(TargetOf(*data.test, 0), ElementsAre('8', '9', '!'));
  EXPECT_EQ(data.encoding,
            (DataEncoding{.vocabulary = 256, .tokens_are_bytes = true, .rows_move = true}));
  EXPECT_EQ(data.train->classes(), 256);
}

TEST(LoadTokens, TakesADirectorysTwoFiles) {
  const std::string directory = TestDirectory();
  WriteTestFile(directory, "train.bin", RawTokens(Count(0, 9)));
  EXPECT_THAT(LoadTokens(directory, {.context = 2}), StatusIs(kNotFound, "val.bin"));
  WriteTestFile(directory, "val.bin", LlmcTokens(Count(20, 3), 3));
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadTokens(directory, {.context = 2}));
  EXPECT_EQ(data.train->rows(), 4);
  EXPECT_THAT(TargetOf(*data.test, 0), ElementsAre(21, 22));
  // The classes are those of both sets, so no class of the test set is out of range.
  EXPECT_EQ(data.train->classes(), 23);
  EXPECT_EQ(data.test->classes(), 23);
  EXPECT_EQ(data.encoding, (DataEncoding{.vocabulary = 23, .rows_move = true}));
  WriteTestFile(directory, "train.npy", NpyFile(NpyHeader("<u2", 9), RawTokens(Count(0, 9))));
  EXPECT_THAT(LoadTokens(directory, {.context = 2}), IsRefused("has train.bin and train.npy"));
}

TEST(LoadTokens, TrainsOnAllOfAFileWithoutATestSet) {
  const std::string directory = TestDirectory();
  const TokenOptions options = {.sets = Sets::kTraining, .context = 2};
  WriteTestFile(directory, "train.bin", RawTokens(Count(0, 9)));
  for (const std::string& path :
       {directory, WriteTestFile(directory, "a.bin", RawTokens(Count(0, 9)))}) {
    ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadTokens(path, options));
    EXPECT_EQ(data.train->rows(), 4);
    EXPECT_EQ(data.encoding.vocabulary, 9);
    EXPECT_EQ(data.test, nullptr);
  }
}

TEST(LoadTokens, TakesAVocabularyThatIsGiven) {
  const std::string path = WriteTestFile(TestDirectory(), "a.npy",
                                         NpyFile(NpyHeader("<u2", 40), RawTokens(Count(0, 40))));
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadTokens(path, {.context = 3, .vocabulary = 50}));
  EXPECT_EQ(data.test->classes(), 50);
  EXPECT_EQ(data.encoding.vocabulary, 50);
  EXPECT_THAT(LoadTokens(path, {.context = 3, .vocabulary = 39}), IsRefused("token 39 is 39"));
}

TEST(LoadTokens, SaysWhichSetIsTooShort) {
  const std::string path = WriteTestFile(TestDirectory(), "a.txt", std::string(50, 'x'));
  EXPECT_OK(LoadTokens(path, {.context = 4}));
  EXPECT_THAT(LoadTokens(path, {.context = 5}),
              IsRefused("a.txt: test set: 5 tokens, expected at least 6 for a context of 5"));
  EXPECT_THAT(LoadTokens(path, {.context = 45}), IsRefused("training set: 45 tokens"));
}

TEST(LoadData, ReadsTokens) {
  DataSource source = {.spec = WriteTestFile(TestDirectory(), "a.txt", std::string(60, 'x')),
                       .train_rows = 7,
                       .tokens = {.context = 5}};
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadData(source));
  EXPECT_EQ(data.train->rows(), 7);
  EXPECT_TRUE(data.train->spec().inputs.front().has_ids());
}

TEST(LoadSamples, TakesAllOfAFileOfTokens) {
  const DataSource source = {
      .spec = WriteTestFile(TestDirectory(), "a.bin", RawTokens(Count(0, 9))),
      .tokens = {.context = 4}};
  ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples(source, {.vocabulary = 30}, 30));
  EXPECT_EQ(samples->rows(), 2);
  EXPECT_EQ(samples->classes(), 30);
  EXPECT_THAT(LoadSamples(source, {.vocabulary = 8}, 8), IsRefused("token 8 is 8"));
}

TEST(LoadSamples, TakesTheTestSetOfADirectoryOfTokens) {
  const std::string directory = TestDirectory();
  WriteTestFile(directory, "train.bin", RawTokens(Count(0, 9)));
  WriteTestFile(directory, "val.bin", RawTokens(Count(5, 5)));
  ASSERT_OK_AND_ASSIGN(
      const auto samples,
      LoadSamples({.spec = directory, .tokens = {.context = 2}}, {.vocabulary = 30}, 30));
  EXPECT_EQ(samples->rows(), 2);
  EXPECT_THAT(InputOf(*samples, 0), ElementsAre(5, 6));
}

// Bytes of text are not the ids of a tokenizer, even if they are within the vocabulary.
TEST(LoadSamples, TellsTextFromIds) {
  const std::string directory = TestDirectory();
  const DataSource text = {.spec = WriteTestFile(directory, "a.txt", std::string(60, 'x')),
                           .tokens = {.context = 5}};
  const DataSource ids = {.spec = WriteTestFile(directory, "a.bin", RawTokens(Count(0, 9))),
                          .tokens = {.context = 4}};
  const DataEncoding of_text = {.vocabulary = 256, .tokens_are_bytes = true};
  const DataEncoding of_ids = {.vocabulary = 256};
  EXPECT_OK(LoadSamples(text, of_text, 256));
  EXPECT_THAT(LoadSamples(text, of_ids, 256),
              StatusIs(kFailedPrecondition, "the model was not trained on text"));
  EXPECT_THAT(LoadSamples(ids, of_text, 256),
              StatusIs(kFailedPrecondition, "not trained on ids of tokens"));
  EXPECT_THAT(LoadSamples(ids, {}, 256), StatusIs(kFailedPrecondition));
  EXPECT_THAT(LoadSamples({.spec = "synthetic:30x4x3"}, of_text, 256),
              StatusIs(kFailedPrecondition, "it is fed with tokens"));
}

// Returns the fingerprint of all files together.
DataFingerprint FingerprintOfSpec(const std::string& spec, const TokenOptions& options) {
  const absl::StatusOr<TrainTest> data = LoadTokens(spec, options);
  EXPECT_OK(data);
  return data.ok() ? FingerprintOf(*data) : DataFingerprint();
}

TEST(TokenFiles, AreOneAfterTheOther) {
  const std::string folder = TestDirectory();
  const auto write = [&](const std::string& name, const std::string& contents) {
    return WriteTestFile(folder, name, contents);
  };
  const std::string raw = write("a.bin", RawTokens(Count(0, 33)));
  const std::string llmc = write("b.bin.gz", Gzip(LlmcTokens(Count(33, 41), 41)));
  const std::string numpy = write("c.npy", NpyFile(NpyHeader("<u2", 26), RawTokens(Count(74, 26))));
  const std::string all = write("all.bin", RawTokens(Count(0, 100)));
  const std::string three = absl::StrCat(raw, ",", llmc, ",", numpy);
  const TokenOptions options = {.context = 5};
  EXPECT_EQ(FingerprintOfSpec(three, options), FingerprintOfSpec(all, options));
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadTokens(three, options));
  EXPECT_EQ(data.encoding.vocabulary, 100);
  ASSERT_OK_AND_ASSIGN(const auto samples, LoadTokenSamples(three, options, data.encoding));
  EXPECT_EQ(samples->rows(), 19);
  EXPECT_THAT(InputOf(*samples, 6), ElementsAre(30, 31, 32, 33, 34));
  EXPECT_THAT(TargetOf(*samples, 14), ElementsAre(71, 72, 73, 74, 75));
}

TEST(TokenFiles, OfTextAreTheTextOfAll) {
  const std::string folder = TestDirectory();
  std::string lines;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&lines, "line ", i, " of a text\n");
  const std::string one = WriteTestFile(folder, "all.txt", lines);
  std::filesystem::create_directories(folder + "/parts");
  WriteTestFile(folder + "/parts", "1.txt", lines.substr(0, 301));
  WriteTestFile(folder + "/parts", "2.txt.gz", Gzip(lines.substr(301)));
  for (const std::string tokenizer : {"", STAGECOACH_TOKENIZER_FIXTURES "/gpt2.json"}) {
    const TokenOptions options = {.context = 5, .tokenizer = tokenizer};
    EXPECT_TRUE(HoldsText(folder + "/parts"));
    EXPECT_EQ(FingerprintOfSpec(folder + "/parts", options), FingerprintOfSpec(one, options));
  }
}

TEST(TokenFiles, RefusesFilesThatDoNotGoTogether) {
  const std::string folder = TestDirectory();
  const std::string a = WriteTestFile(folder, "a.bin", RawTokens(Count(0, 60)));
  const std::string b = WriteTestFile(folder, "b.bin", RawTokens(Count(0, 60)));
  const std::string two = absl::StrCat(a, ",", b);
  EXPECT_THAT(LoadTokens(absl::StrCat(a, ",", WriteTestFile(folder, "c.txt", "text")), {}),
              IsRefused("c.txt is text, and "));
  EXPECT_THAT(LoadTokens(absl::StrCat(a, ",", WriteTestFile(folder, "d.bin", "")), {}),
              IsRefused("d.bin: the file is empty"));
  EXPECT_THAT(LoadTokens(absl::StrCat(a, ",", folder, "/none.bin"), {}),
              StatusIs(kNotFound, "none.bin"));
  TokenInfo info = {.vocabulary = 60, .tokenizer = "t.json", .tokenizer_hash = "abc"};
  ASSERT_OK(WriteTokenInfo(a, info));
  EXPECT_THAT(LoadTokens(two, {.context = 5}),
              IsRefused("b.bin has the ids of a tokenizer that is not known, and "));
  ASSERT_OK(WriteTokenInfo(b, info));
  EXPECT_OK(LoadTokens(two, {.context = 5}));
  info.tokenizer_hash = "abd";
  ASSERT_OK(WriteTokenInfo(b, info));
  EXPECT_THAT(LoadTokens(two, {.context = 5}), IsRefused("b.bin has the ids of the tokenizer abd"));
  info = {
      .vocabulary = 60, .tokenizer = "t.json", .tokenizer_hash = "abc", .tokens = {{"b.bin", 61}}};
  ASSERT_OK(WriteTokenInfo(b, info));
  EXPECT_THAT(LoadTokens(two, {.context = 5}), IsRefused("b.bin has 60 tokens, and not 61"));
}

}  // namespace
}  // namespace stagecoach::engine
