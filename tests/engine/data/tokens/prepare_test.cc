#include "engine/data/tokens/prepare.h"

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/data/formats/load.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/data/tokens/token_file.h"
#include "engine/data/tokens/token_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kNotFound;
using ::stagecoach::testing::IsRefused;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

using IdList = std::vector<int32_t>;

const char* const kGpt2 = STAGECOACH_TOKENIZER_FIXTURES "/gpt2.json";
const char* const kLlama3 = STAGECOACH_TOKENIZER_FIXTURES "/llama3.json";

std::string SomeText() {
  std::string text;
  for (int i = 0; i < 400; ++i) absl::StrAppend(&text, "line ", i, " of it, \u00e4nd more\n");
  return text;
}

IdList AllIds(const TokenIds& ids) {
  IdList all(static_cast<size_t>(ids.size()));
  ids.Copy(0, absl::MakeSpan(all));
  return all;
}

IdList IdsIn(const std::string& path) {
  const TokenFormat format = path.back() == 'y' ? TokenFormat::kNpy : TokenFormat::kBin;
  return AllIds(TokenIds::Map(path, format).value());
}

IdList EncodedBy(const char* tokenizer, absl::string_view text) {
  return Tokenizer::Load(tokenizer).value()->Encode(text).value();
}

TEST(TokenFile, IsReadAsItWasWritten) {
  const std::string directory = TestDirectory();
  for (const int64_t vocabulary : {1000, 65'536, 65'537, 128'256}) {
    IdList ids(1000);
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(vocabulary - 1000));
    for (const char* name : {"/a.bin", "/a.npy"}) {
      const std::string path = directory + name;
      const TokenFormat format = path.back() == 'y' ? TokenFormat::kNpy : TokenFormat::kBin;
      ASSERT_OK_AND_ASSIGN(
          const int64_t tokens,
          WriteTokenFile(path, format, vocabulary, [&](const AppendTokens& append) -> absl::Status {
            const absl::Status first = append(absl::MakeSpan(ids).subspan(0, 300));
            return first.ok() ? append(absl::MakeSpan(ids).subspan(300)) : first;
          }));
      EXPECT_EQ(tokens, 1000);
      EXPECT_EQ(IdsIn(path), ids);
      const size_t header = format == TokenFormat::kNpy ? 128 : 1024;
      EXPECT_EQ(base::ReadFile(path, 1 << 20).value().size(),
                header + (vocabulary <= 65'536 ? 2000 : 4000));
    }
  }
}

TEST(TrainingBytes, CutsAtTheEndOfALine) {
  EXPECT_EQ(TrainingBytes("12345\n789\n", 0.5), 6);
  EXPECT_EQ(TrainingBytes("1234567\n90", 0.5), 8);
  // There is no line end, or nothing after it: the text is divided at a character.
  EXPECT_EQ(TrainingBytes("1234567890", 0.5), 5);
  EXPECT_EQ(TrainingBytes("123456789\n", 0.5), 5);
  EXPECT_EQ(TrainingBytes("1234\u00e4\u00e4\u00e4", 0.5), 6);
  EXPECT_EQ(TrainingBytes("", 0.1), 0);
}

TEST(PrepareTokens, MakesADirectoryThatKnowsItsVocabulary) {
  const std::string directory = TestDirectory();
  const std::string text = SomeText();
  const PrepareOptions options = {.text = WriteTestFile(directory, "a.md", text),
                                  .tokenizer = kGpt2,
                                  .output = directory + "/made/here",
                                  .test_fraction = 0.3};
  ASSERT_OK_AND_ASSIGN(const PreparedTokens prepared, PrepareTokens(options));
  const size_t cut = TrainingBytes(text, 0.3);
  const IdList train = EncodedBy(kGpt2, text.substr(0, cut));
  const IdList val = EncodedBy(kGpt2, text.substr(cut));
  EXPECT_EQ(IdsIn(options.output + "/train.bin"), train);
  EXPECT_EQ(IdsIn(options.output + "/val.bin"), val);
  EXPECT_EQ(prepared.text_bytes, static_cast<int64_t>(text.size()));
  EXPECT_EQ(prepared.vocabulary, 701);
  EXPECT_EQ(prepared.token_bytes, 2);
  ASSERT_EQ(prepared.files.size(), 2);
  EXPECT_EQ(prepared.files[1].tokens, std::ssize(val));

  ASSERT_OK_AND_ASSIGN(const TrainTest data,
                       LoadData({.spec = options.output, .tokens = {.context = 16}}));
  EXPECT_EQ(data.train->classes(), 701);
  const std::string hash = Tokenizer::Load(kGpt2).value()->hash();
  EXPECT_EQ(data.encoding, (DataEncoding{.vocabulary = 701, .rows_move = true, .tokenizer = hash}));
  ASSERT_OK_AND_ASSIGN(const auto info, ReadTokenInfo(options.output));
  EXPECT_EQ(Tokenizer::Load(info->tokenizer).value()->hash(), hash);
}

TEST(PrepareTokens, MakesOneFile) {
  const std::string directory = TestDirectory();
  const std::string text = SomeText();
  for (const char* name : {"/a.bin", "/a.npy"}) {
    const PrepareOptions options = {.text = WriteTestFile(directory, "a.txt", text),
                                    .tokenizer = kLlama3,
                                    .output = directory + name};
    ASSERT_OK(PrepareTokens(options));
    EXPECT_EQ(IdsIn(options.output), EncodedBy(kLlama3, text));
    ASSERT_OK_AND_ASSIGN(const TrainTest data,
                         LoadData({.spec = options.output, .tokens = {.context = 16}}));
    EXPECT_EQ(data.encoding.vocabulary, 604);
  }
}

TEST(PrepareTokens, LeavesNothingBehindIfItFails) {
  const std::string directory = TestDirectory();
  PrepareOptions options = {.text = WriteTestFile(directory, "a.txt", SomeText() + "\xC3"),
                            .tokenizer = kGpt2,
                            .output = directory + "/a.bin"};
  EXPECT_THAT(PrepareTokens(options),
              StatusIs(kDataLoss, AllOf(HasSubstr("a.txt: the byte 0xc3 at offset "),
                                        HasSubstr(absl::StrCat(SomeText().size())))));
  options.text = WriteTestFile(directory, "a.txt", SomeText());
  options.on_progress = [](int64_t /*done_bytes*/, int64_t /*bytes*/) {
    return absl::CancelledError("enough");
  };
  EXPECT_THAT(PrepareTokens(options), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(base::Exists(options.output));
  EXPECT_FALSE(base::Exists(options.output + ".json"));
  options.text = directory + "/none.txt";
  EXPECT_THAT(PrepareTokens(options), StatusIs(kNotFound, "none.txt"));
}

TEST(LoadTokens, RefusesFilesOfAnotherTimeThanWhatDescribesThem) {
  const std::string directory = TestDirectory();
  const PrepareOptions options = {.text = WriteTestFile(directory, "a.txt", SomeText()),
                                  .tokenizer = kGpt2,
                                  .output = directory + "/a.bin"};
  ASSERT_OK(PrepareTokens(options));
  ASSERT_OK(WriteTokenFile(options.output, TokenFormat::kBin, 701,
                           [](const AppendTokens& append) { return append(IdList(500, 3)); }));
  EXPECT_THAT(LoadData({.spec = options.output, .tokens = {.context = 16}}),
              IsRefused("a.bin has 500 tokens, and not "));
  WriteTestFile(directory, "a.bin.json", "{\"vocabulary\": 1}");
  EXPECT_THAT(LoadData({.spec = options.output, .tokens = {.context = 16}}),
              IsRefused("a.bin.json:1:2: $.vocabulary: must be"));
}

TEST(LoadTokens, MakesTokensOfAnyText) {
  const std::string text = SomeText();
  const DataSource source = {.spec = WriteTestFile(TestDirectory(), "a.csv", text),
                             .tokens = {.context = 16, .tokenizer = kGpt2}};
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadData(source));
  const size_t cut = TrainingBytes(text, 0.1);
  const auto* const train = dynamic_cast<const TokenDataset*>(data.train.get());
  const auto* const test = dynamic_cast<const TokenDataset*>(data.test.get());
  ASSERT_NE(train, nullptr);
  ASSERT_NE(test, nullptr);
  EXPECT_EQ(AllIds(train->ids()), EncodedBy(kGpt2, text.substr(0, cut)));
  EXPECT_EQ(AllIds(test->ids()), EncodedBy(kGpt2, text.substr(cut)));
  EXPECT_EQ(data.encoding.vocabulary, 701);
  EXPECT_FALSE(data.encoding.tokens_are_bytes);
}

TEST(LoadSamples, TakesOnlyTokensOfTheModelsTokenizer) {
  const std::string directory = TestDirectory();
  DataSource source = {.spec = WriteTestFile(directory, "a.txt", SomeText()),
                       .tokens = {.context = 16, .tokenizer = kGpt2}};
  const DataEncoding encoding = LoadData(source).value().encoding;
  ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples(source, encoding, 701));
  EXPECT_EQ(samples->rows(), (std::ssize(EncodedBy(kGpt2, SomeText())) - 1) / 16);
  const DataEncoding of_bytes = {.vocabulary = 256, .tokens_are_bytes = true};
  EXPECT_THAT(LoadSamples(source, of_bytes, 256), StatusIs(kFailedPrecondition));
  EXPECT_THAT(LoadSamples(source, {.vocabulary = 701}, 701), StatusIs(kFailedPrecondition));

  source.tokens.tokenizer = kLlama3;
  EXPECT_THAT(LoadSamples(source, encoding, 701),
              StatusIs(kFailedPrecondition, "and these are of "));
  source.tokens.tokenizer = "";
  EXPECT_THAT(LoadSamples(source, encoding, 701),
              StatusIs(kFailedPrecondition, "the model was not trained on text"));

  source.spec = directory + "/ids.bin";
  const auto prepare = [&](const char* tokenizer) {
    return PrepareTokens(
        {.text = directory + "/a.txt", .tokenizer = tokenizer, .output = source.spec});
  };
  ASSERT_OK(prepare(kLlama3));
  EXPECT_THAT(LoadSamples(source, encoding, 701), StatusIs(kFailedPrecondition));
  source.tokens.tokenizer = kGpt2;
  EXPECT_THAT(LoadData(source), StatusIs(kFailedPrecondition, "has the ids of the"));
  source.tokens.tokenizer = "";
  ASSERT_OK(prepare(kGpt2));
  EXPECT_OK(LoadSamples(source, encoding, 701));
  EXPECT_OK(LoadSamples(source, {.vocabulary = 701}, 701));
  // The kind of these ids is not known.
  std::filesystem::remove(source.spec + ".json");
  EXPECT_THAT(LoadSamples(source, encoding, 701), StatusIs(kFailedPrecondition, "--tokenizer"));
  source.tokens.tokenizer = kGpt2;
  EXPECT_OK(LoadSamples(source, encoding, 701));
}

}  // namespace
}  // namespace stagecoach::engine
