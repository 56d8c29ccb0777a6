#include "engine/data/chat/chat_dataset.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/data/data_fingerprint.h"
#include "engine/data/formats/load.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/loss_terms.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::kNoLabel;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> InputOf(const Dataset& data, int64_t row) {
  std::vector<int32_t> ids(static_cast<size_t>(data.features()));
  data.CopyInput(0, row, absl::MakeSpan(reinterpret_cast<std::byte*>(ids.data()), ids.size() * 4));
  return ids;
}

std::vector<int32_t> LabelsOf(const Dataset& data, int64_t row) {
  std::vector<int32_t> labels(static_cast<size_t>(data.features()));
  data.CopyTarget(row,
                  absl::MakeSpan(reinterpret_cast<std::byte*>(labels.data()), labels.size() * 4));
  return labels;
}

TEST(ChatDataset, PadsEachExampleAndLabelsWhatIsLearned) {
  ASSERT_OK_AND_ASSIGN(
      const auto data,
      ChatDataset::Create(
          {{{5, 6, 7}, {0, 0, 1}}, {{1, 2, 3, 4, 5}, {1, 1, 0, 1, 1}}, {{9, 8}, {0, 1}}}, 4, 10));
  EXPECT_EQ(data->rows(), 3);
  EXPECT_THAT(InputOf(*data, 0), ElementsAre(5, 6, 7, 0));
  EXPECT_THAT(LabelsOf(*data, 0), ElementsAre(kNoLabel, 7, kNoLabel, kNoLabel));
  // The first token is not predicted, and the last one is not read.
  EXPECT_THAT(InputOf(*data, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(LabelsOf(*data, 1), ElementsAre(2, kNoLabel, 4, 5));
  EXPECT_THAT(InputOf(*data, 2), ElementsAre(9, 8, 0, 0));
  EXPECT_THAT(LabelsOf(*data, 2), ElementsAre(8, kNoLabel, kNoLabel, kNoLabel));
  EXPECT_EQ(data->AnswersOf(0), 1);
  EXPECT_EQ(data->AnswersOf(1), 3);
  EXPECT_EQ(CountAnswers(*data, {0, 1, 2}), 5);
}

std::vector<int32_t> DocumentsOf(const Dataset& data, int64_t row) {
  std::vector<int32_t> documents(static_cast<size_t>(data.features()), -1);
  data.CopyDocuments(row, absl::MakeSpan(documents));
  return documents;
}

// Examples of 2, 4, 1 and 3 positions: each of the long ones has room for a short one.
TEST(ChatDataset, PacksExamplesAsDocuments) {
  const std::vector<ChatTokens> examples = {{{5, 6, 7}, {0, 0, 1}},
                                            {{1, 2, 3, 4, 5}, {1, 1, 0, 1, 1}},
                                            {{9, 8}, {0, 1}},
                                            {{2, 3, 4, 5}, {1, 0, 1, 1}}};
  ASSERT_OK_AND_ASSIGN(const auto data,
                       ChatDataset::Create(examples, 6, 10, ExamplesInRow::kPacked));
  EXPECT_TRUE(data->spec().has_documents);
  ASSERT_EQ(data->rows(), 2);
  EXPECT_THAT(InputOf(*data, 0), ElementsAre(5, 6, 1, 2, 3, 4));
  EXPECT_THAT(LabelsOf(*data, 0), ElementsAre(kNoLabel, 7, 2, kNoLabel, 4, 5));
  EXPECT_THAT(DocumentsOf(*data, 0), ElementsAre(0, 0, 2, 2, 2, 2));
  EXPECT_EQ(data->AnswersOf(0), 4);
  EXPECT_THAT(InputOf(*data, 1), ElementsAre(9, 2, 3, 4, 0, 0));
  EXPECT_THAT(LabelsOf(*data, 1), ElementsAre(8, kNoLabel, 4, 5, kNoLabel, kNoLabel));
  EXPECT_THAT(DocumentsOf(*data, 1), ElementsAre(0, 1, 1, 1, 4, 4));
  EXPECT_EQ(data->AnswersOf(1), 3);
  EXPECT_DOUBLE_EQ(data->fill(), 10.0 / 12.0);
  ASSERT_OK_AND_ASSIGN(const auto second, SpreadSubset(data, 1));
  EXPECT_THAT(DocumentsOf(*second, 0), ElementsAre(0, 0, 2, 2, 2, 2));
  // Not packed, a row is one document.
  ASSERT_OK_AND_ASSIGN(const auto apart, ChatDataset::Create(examples, 6, 10));
  EXPECT_FALSE(apart->spec().has_documents);
  EXPECT_THAT(DocumentsOf(*apart, 1), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_DOUBLE_EQ(apart->fill(), 14.0 / 24.0);
}

// The last id of an example takes no position, so that the longest one fits.
TEST(ChatDataset, PacksTheLongestExample) {
  ASSERT_OK_AND_ASSIGN(const auto data, ChatDataset::Create({{{1, 2, 3}, {0, 1, 1}}}, 2, 10,
                                                            ExamplesInRow::kPacked));
  EXPECT_THAT(InputOf(*data, 0), ElementsAre(1, 2));
  EXPECT_THAT(LabelsOf(*data, 0), ElementsAre(2, 3));
  EXPECT_THAT(DocumentsOf(*data, 0), ElementsAre(0, 0));
  EXPECT_THAT(ChatDataset::Create({{{1, 2, 3, 4}, {0, 1, 1, 1}}}, 2, 10, ExamplesInRow::kPacked),
              IsRefused("example 0 has 4 tokens"));
}

TEST(ChatDataset, RefusesExamplesThatAreNone) {
  const auto create = [](const std::vector<ChatTokens>& examples, int64_t context = 2,
                         int64_t vocabulary = 10) {
    return ChatDataset::Create(examples, context, vocabulary).status();
  };
  const ChatTokens good = {{1, 2, 3}, {0, 1, 1}};
  EXPECT_OK(create({good}));
  EXPECT_THAT(create({}), IsRefused("no example"));
  EXPECT_THAT(create({good, {{1, 2, 3, 4}, {0, 1, 1, 1}}}),
              IsRefused("example 1 has 4 tokens, 3 of them to learn; expected at most 3"));
  EXPECT_THAT(create({{{1, 2}, {1, 0}}}), IsRefused("example 0 has 2 tokens, 0 of them"));
  EXPECT_THAT(create({{{}, {}}}), IsRefused("example 0 has 0 tokens"));
  EXPECT_THAT(create({{{1, 10}, {0, 1}}}), IsRefused("has the token 10, expected 0 to 9"));
  EXPECT_THAT(create({{{-1, 1}, {0, 1}}}), IsRefused("has the token -1"));
  EXPECT_THAT(create({good}, 0), IsRefused("a context of 0"));
  EXPECT_THAT(create({good}, 2, 1), IsRefused("a vocabulary of 1"));
}

// A file of `count` conversations, each with another answer.
std::string ChatsIn(const std::string& folder, int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&lines, R"({"messages": [{"role": "user", "content": "to be?"}, )",
                    R"({"role": "assistant", "content": "answer )", i, "\"}]}\n");
  }
  WriteTestFile(folder, "chats.jsonl", lines);
  return folder + "/chats.jsonl";
}

DataSource ChatSource(const std::string& path) {
  return {.spec = path,
          .tokens = {.context = 64,
                     .tokenizer = absl::StrCat(STAGECOACH_TOKENIZER_FIXTURES, "/qwen2.json"),
                     .chat_template = "chatml"}};
}

// Returns the text of the labels of a row.
std::string LearnedText(const DataSource& source, const Dataset& data, int64_t row) {
  std::vector<int32_t> ids;
  for (const int32_t label : LabelsOf(data, row)) {
    if (label != kNoLabel) ids.push_back(label);
  }
  return Tokenizer::Load(source.tokens.tokenizer).value()->Decode(ids);
}

TEST(LoadChats, TheLastExamplesAreTheTestSet) {
  DataSource source = ChatSource(ChatsIn(TestDirectory(), 25));
  ASSERT_OK_AND_ASSIGN(TrainTest data, LoadData(source));
  EXPECT_EQ(data.train->rows(), 23);
  EXPECT_EQ(data.test->rows(), 2);
  EXPECT_EQ(data.train->classes(), 422);
  EXPECT_EQ(data.encoding.vocabulary, 422);
  EXPECT_EQ(LearnedText(source, *data.train, 22), "answer 22<|im_end|>");
  EXPECT_EQ(LearnedText(source, *data.test, 0), "answer 23<|im_end|>");
  source.test_fraction = 0.01;  // less than one
  EXPECT_EQ(LoadData(source)->test->rows(), 1);
  source.test_fraction = 0.5;
  EXPECT_EQ(LoadData(source)->test->rows(), 12);
  source.test_spec = source.spec;
  ASSERT_OK_AND_ASSIGN(data, LoadData(source));
  EXPECT_EQ(data.train->rows(), 25);
  EXPECT_EQ(data.test->rows(), 25);
  ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples(source, data.encoding, 422));
  EXPECT_EQ(samples->rows(), 25);
  EXPECT_EQ(LearnedText(source, *samples, 7), "answer 7<|im_end|>");
}

TEST(LoadChats, SeveralFilesAreOneAfterTheOther) {
  const std::string folder = TestDirectory();
  const DataSource source = ChatSource(ChatsIn(folder, 25));
  ASSERT_OK_AND_ASSIGN(const TrainTest one, LoadData(source));
  std::ifstream file(source.spec);
  std::vector<std::string> lines(25);
  for (std::string& line : lines) std::getline(file, line);
  const auto part = [&](size_t first, size_t count) {
    return absl::StrJoin(absl::MakeConstSpan(lines).subspan(first, count), "\n");
  };
  std::filesystem::create_directories(folder + "/parts");
  WriteTestFile(folder + "/parts", "1.jsonl", part(0, 10));
  WriteTestFile(folder + "/parts", "2.jsonl.gz", Gzip(part(10, 15)));
  const DataSource parts = ChatSource(folder + "/parts");
  EXPECT_TRUE(HoldsChats(parts.spec));
  EXPECT_TRUE(IsDivided(parts));
  ASSERT_OK_AND_ASSIGN(const TrainTest joined, LoadData(parts));
  EXPECT_EQ(FingerprintOf(joined), FingerprintOf(one));
  ASSERT_OK_AND_ASSIGN(const auto samples, LoadSamples(parts, one.encoding, 422));
  EXPECT_EQ(samples->rows(), 25);
}

TEST(LoadChats, SeveralFilesHaveExamplesOfOneKind) {
  const std::string folder = TestDirectory();
  DataSource source = ChatSource(ChatsIn(folder, 5));
  WriteTestFile(folder, "texts.jsonl", "{\"text\": \"one\"}\n");
  source.spec += "," + folder + "/texts.jsonl";
  EXPECT_THAT(LoadData(source), IsRefused(HasSubstr("/texts.jsonl:1: the line has a text, and")));
  WriteTestFile(folder, "texts.jsonl", "");
  EXPECT_THAT(LoadData(source), IsRefused(HasSubstr("/texts.jsonl: ")));
}

TEST(LoadChats, WhatIsLearnedIsSaid) {
  DataSource source = ChatSource(ChatsIn(TestDirectory(), 2));
  source.tokens.trains_on_all = true;
  // The first token is never predicted.
  EXPECT_THAT(LearnedText(source, *LoadData(source)->train, 0),
              HasSubstr("user\nto be?<|im_end|>\n<|im_start|>assistant\nanswer 0<|im_end|>\n"));
}

// A prompt may have its template already.
TEST(LoadChats, PromptsGetATemplateOnlyIfOneIsNamed) {
  const std::string folder = TestDirectory();
  WriteTestFile(folder, "pairs.jsonl",
                "{\"prompt\": \"two\", \"completion\": \" three\"}\n"
                "{\"prompt\": \"four\", \"completion\": \" five\"}\n");
  DataSource source = ChatSource(folder + "/pairs.jsonl");
  EXPECT_EQ(LearnedText(source, *LoadData(source)->train, 0), " three<|im_end|>");
  source.tokens.chat_template.clear();
  EXPECT_EQ(LearnedText(source, *LoadData(source)->train, 0), " three<|endoftext|>");
}

std::string ExampleOf(int bars) {
  return absl::StrCat(R"({"prompt": "be", "completion": ")",
                      std::string(static_cast<size_t>(bars), '|'), "\"}\n");
}

TEST(LoadChats, TheContextIsThatOfTheLongestIfItIsALimit) {
  const std::string folder = TestDirectory();
  DataSource source = ChatSource(folder + "/pairs.jsonl");
  source.tokens.chat_template.clear();
  source.tokens.context_is_limit = true;
  // With the end of the text, so many bars make 65 ids, of which the last 64 are predicted.
  const auto tokenizer = Tokenizer::Load(source.tokens.tokenizer).value();
  int bars = 1;
  while (
      tokenizer->Encode(absl::StrCat("be", std::string(static_cast<size_t>(bars), '|')))->size() <
      64) {
    ++bars;
  }
  WriteTestFile(folder, "pairs.jsonl",
                absl::StrCat(ExampleOf(1), ExampleOf(2), ExampleOf(bars), ExampleOf(3)));
  for (const auto& [limit, context] :
       std::vector<std::pair<int64_t, int64_t>>{{1000, 64}, {64, 64}, {63, 63}}) {
    source.tokens.context = limit;
    EXPECT_EQ(LoadData(source)->train->features(), context);
    EXPECT_EQ(LoadData(source)->train->rows(), limit < 64 ? 2 : 3);
  }
  source.tokens.context = 1000;
  WriteTestFile(folder, "pairs.jsonl", absl::StrCat(ExampleOf(1), ExampleOf(bars + 2)));
  source.test_spec = source.spec;
  ASSERT_OK_AND_ASSIGN(const TrainTest data, LoadData(source));
  EXPECT_EQ(data.train->features(), 128);
  EXPECT_EQ(data.test->features(), 128);
  source.tokens.context_is_limit = false;
  EXPECT_EQ(LoadData(source)->train->features(), 1000);
}

TEST(LoadChats, PacksSetsThatStayApart) {
  DataSource source = ChatSource(ChatsIn(TestDirectory(), 25));
  source.tokens.packs_examples = true;
  source.tokens.context_is_limit = true;
  source.tokens.context = 5000;
  std::vector<std::string> notices;
  source.on_notice = [&](const std::string& line) { notices.push_back(line); };
  ASSERT_OK_AND_ASSIGN(TrainTest data, LoadData(source));
  EXPECT_EQ(data.train->features(), kLeastPackedContext);
  EXPECT_EQ(data.test->features(), kLeastPackedContext);
  EXPECT_EQ(data.train->rows(), 1);
  EXPECT_EQ(data.test->rows(), 1);
  EXPECT_THAT(
      notices,
      ::testing::UnorderedElementsAre(
          HasSubstr("training set's 23 examples are packed into samples of 1,024 tokens: 1, "),
          HasSubstr("test set's 2 examples are packed into samples of 1,024 tokens: 1, ")));
  EXPECT_EQ(LearnedText(source, *data.test, 0), "answer 23<|im_end|>answer 24<|im_end|>");
  source.tokens.context = 100;
  ASSERT_OK_AND_ASSIGN(data, LoadData(source));
  EXPECT_EQ(data.train->features(), 100);
  EXPECT_GT(data.train->rows(), 5);
  source.tokens.context = 200;
  source.tokens.context_is_limit = false;
  EXPECT_EQ(LoadData(source)->train->features(), 200);
}

TEST(LoadChats, WhatIsLeftOutIsToldOnce) {
  const std::string folder = TestDirectory();
  std::string lines;
  for (const int count : {1, 2, 50, 3, 60}) {
    std::vector<std::string> words(static_cast<size_t>(count), "be");
    absl::StrAppend(&lines, R"({"prompt": "to", "completion": ")", absl::StrJoin(words, " "),
                    "\"}\n");
  }
  WriteTestFile(folder, "pairs.jsonl", lines);
  DataSource source = ChatSource(folder + "/pairs.jsonl");
  source.tokens.chat_template.clear();
  source.tokens.context = 20;
  std::vector<std::string> notices;
  source.on_notice = [&](const std::string& line) { notices.push_back(line); };
  EXPECT_EQ(LoadData(source)->train->rows(), 2);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("2 of 5 examples are left out: longer than")));
  source.on_notice = nullptr;
  source.tokens.context = 1;
  EXPECT_THAT(LoadData(source), IsRefused("no example"));
}

TEST(LoadChats, NeedsTheTokenizerOfTheModel) {
  DataSource source = ChatSource(ChatsIn(TestDirectory(), 2));
  const DataEncoding other = {.vocabulary = 422, .tokenizer = "another"};
  EXPECT_THAT(LoadSamples(source, other, 422), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                        HasSubstr("was not trained on tokens of")));
  for (const char* tokenizer : {"", "bytes"}) {
    source.tokens.tokenizer = tokenizer;
    EXPECT_THAT(LoadData(source), IsRefused("name its file with --tokenizer"));
  }
}

}  // namespace
}  // namespace stagecoach::engine
