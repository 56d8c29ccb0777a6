#include "engine/data/chat/chat_example.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;

using TokenizerPointer = std::shared_ptr<const Tokenizer>;
using Marks = std::vector<uint8_t>;

json TokenizerFixture(const std::string& name) {
  return json::parse(
      base::ReadFile(absl::StrCat(STAGECOACH_TOKENIZER_FIXTURES, "/", name), 1 << 20).value());
}

TokenizerPointer LoadFile(const json& file) {
  return Tokenizer::Load(WriteTestFile(TestDirectory(), "tokenizer.json", file.dump())).value();
}

// Loads a tokenizer of the fixtures to which tokens were added.
json WithTokens(json file, const std::vector<std::string>& tokens) {
  json& added = file["added_tokens"];
  int64_t next = 0;
  for (const auto& [text, id] : file["model"]["vocab"].items()) {
    next = std::max(next, id.get<int64_t>() + 1);
  }
  for (const json& token : added) next = std::max(next, token["id"].get<int64_t>() + 1);
  for (const std::string& token : tokens) {
    json one = added[0];
    one["id"] = next++;
    one["content"] = token;
    added.push_back(one);
  }
  return file;
}

ChatTemplate Chat(const std::string& name) { return FindChatTemplate(name).value(); }

std::string BytesOf(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) absl::StrAppend(&bytes, tokenizer.BytesOf(id));
  return bytes;
}

// Returns the bytes of each run of trained tokens.
std::vector<std::string> TrainedRuns(const Tokenizer& tokenizer, const ChatTokens& tokens) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.trained[i] == 0) continue;
    if (i == 0 || tokens.trained[i - 1] == 0) runs.emplace_back();
    absl::StrAppend(&runs.back(), tokenizer.BytesOf(tokens.ids[i]));
  }
  return runs;
}

const Conversation& TwoAnswers() {
  static const auto* const conversation = new Conversation{{{"system", "Be brief."},
                                                            {"user", "Speak, speak."},
                                                            {"assistant", "You are all resolved."},
                                                            {"user", "Gr\u00fc\u00dfe \U0001f600"},
                                                            {"assistant", "Resolved. Resolved."}}};
  return *conversation;
}

// What a file's tokenizer makes of texts with add_special_tokens=False.
std::vector<int32_t> EncodeBare(json file, const std::string& text) {
  file["post_processor"] = nullptr;
  return LoadFile(file)->Encode(text).value();
}

TEST(TokenizeChat, GivesTheIdsOfTheTextWithoutThePostProcessor) {
  const std::vector<std::pair<const char*, const char*>> all = {
      {"gpt2.json", "chatml"},      {"llama3.json", "llama3"}, {"llama3.json", "chatml"},
      {"mistral.json", "mistral"},  {"llama2.json", "alpaca"}, {"bert.json", "phi3"},
      {"mistral.json", "llama3.1"}, {"smollm.json", "gemma"}};
  for (const auto& [name, chat] : all) {
    SCOPED_TRACE(absl::StrCat(name, " with ", chat));
    const json file = TokenizerFixture(name);
    const TokenizerPointer tokenizer = LoadFile(file);
    ChatTemplate filled = Chat(chat);
    if (filled.stop.empty())
      filled.stop = std::string(tokenizer->BytesOf(*tokenizer->end_of_text()));
    ASSERT_OK_AND_ASSIGN(const RenderedChat rendered,
                         RenderChat(filled, TwoAnswers().messages, false));
    const ChatTemplate own = Chat(chat);
    for (const TrainOn train_on : {TrainOn::kAll, TrainOn::kAnswers}) {
      ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                           TokenizeChat(*tokenizer, &own, TwoAnswers(), train_on));
      EXPECT_EQ(tokens.ids, EncodeBare(file, rendered.text));
      EXPECT_EQ(tokens.trained.size(), tokens.ids.size());
    }
  }
}

TEST(TokenizeChat, TrainsOnTheTokensOfAnswersAndTheirStops) {
  // Markers are tokens of the second, and texts for the others.
  const json qwen = TokenizerFixture("qwen2.json");
  for (const json& file : {qwen, WithTokens(qwen, {"<|im_end|>"}), TokenizerFixture("gpt2.json")}) {
    const TokenizerPointer tokenizer = LoadFile(file);
    const ChatTemplate chat = Chat("chatml");
    ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                         TokenizeChat(*tokenizer, &chat, TwoAnswers(), TrainOn::kAnswers));
    EXPECT_THAT(TrainedRuns(*tokenizer, tokens),
                ElementsAre("You are all resolved.<|im_end|>", "Resolved. Resolved.<|im_end|>"));
  }
}

TEST(TokenizeChat, TrainsOnTheSpaceThatTheModelSays) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("mistral.json"));
  const ChatTemplate chat = Chat("mistral");
  ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                       TokenizeChat(*tokenizer, &chat, TwoAnswers(), TrainOn::kAnswers));
  EXPECT_THAT(TrainedRuns(*tokenizer, tokens),
              ElementsAre(" You are all resolved.</s>", " Resolved. Resolved.</s>"));
}

TEST(TokenizeChat, TrainsOnAllTokensIfAsked) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  const ChatTemplate chat = Chat("llama3");
  ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                       TokenizeChat(*tokenizer, &chat, TwoAnswers(), TrainOn::kAll));
  EXPECT_THAT(tokens.trained, Each(1));
}

TEST(TokenizeChat, TrainsOnNothingWhereThereIsNoAnswer) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  const ChatTemplate chat = Chat("chatml");
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens tokens,
      TokenizeChat(*tokenizer, &chat, Conversation{{{"user", "the"}}}, TrainOn::kAnswers));
  EXPECT_THAT(tokens.trained, Each(0));
}

TEST(TokenizeChat, WritesATokenThatBeginsTextsOnce) {
  const json file = TokenizerFixture("llama3.json");
  const TokenizerPointer tokenizer = LoadFile(file);
  const ChatTemplate writes = Chat("llama3"), does_not = Chat("chatml");
  const int32_t begin = 600;
  ASSERT_EQ(tokenizer->BytesOf(begin), "<|begin_of_text|>");
  ASSERT_OK_AND_ASSIGN(const ChatTokens one,
                       TokenizeChat(*tokenizer, &writes, TwoAnswers(), TrainOn::kAll));
  EXPECT_EQ(one.ids[0], begin);
  EXPECT_NE(one.ids[1], begin);
  ASSERT_OK_AND_ASSIGN(const ChatTokens none,
                       TokenizeChat(*tokenizer, &does_not, TwoAnswers(), TrainOn::kAll));
  EXPECT_NE(none.ids[0], begin);
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens written,
      TokenizeChat(*tokenizer, nullptr, PlainText{"<|begin_of_text|>the"}, TrainOn::kAll));
  ASSERT_OK_AND_ASSIGN(const ChatTokens added,
                       TokenizeChat(*tokenizer, nullptr, PlainText{"the"}, TrainOn::kAll));
  EXPECT_EQ(written.ids, added.ids);
  EXPECT_EQ(added.ids[0], begin);
}

TEST(TokenizeChat, EndsAnswersWithTheEndOfTextWhereTheTemplateLeavesItOpen) {
  const ChatTemplate chat = Chat("alpaca");
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                       TokenizeChat(*tokenizer, &chat, TwoAnswers(), TrainOn::kAnswers));
  EXPECT_THAT(TrainedRuns(*tokenizer, tokens), ElementsAre("You are all resolved.<|endoftext|>",
                                                           "Resolved. Resolved.<|endoftext|>"));
  json without = TokenizerFixture("qwen2.json");
  without["added_tokens"] = json::array();
  EXPECT_THAT(TokenizeChat(*LoadFile(without), &chat, TwoAnswers(), TrainOn::kAnswers),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "in alpaca, an answer ends in the tokenizer's end-of-text token"));
}

TEST(TokenizeChat, TrainsOnACompletionAndTheEndOfItsText) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  const PromptCompletion pair{"Speak, speak.", " You are all resolved."};
  ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                       TokenizeChat(*tokenizer, nullptr, pair, TrainOn::kAnswers));
  EXPECT_EQ(BytesOf(*tokenizer, tokens.ids), "Speak, speak. You are all resolved.<|endoftext|>");
  EXPECT_THAT(TrainedRuns(*tokenizer, tokens), ElementsAre(" You are all resolved.<|endoftext|>"));
  ASSERT_OK_AND_ASSIGN(const ChatTokens all,
                       TokenizeChat(*tokenizer, nullptr, pair, TrainOn::kAll));
  EXPECT_EQ(all.ids, tokens.ids);
  EXPECT_THAT(all.trained, Each(1));
}

TEST(TokenizeChat, DoesNotTrainOnWhatThePostProcessorPutsBeforeAPrompt) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("llama3.json"));
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens tokens,
      TokenizeChat(*tokenizer, nullptr, PromptCompletion{"Speak", " speak"}, TrainOn::kAnswers));
  EXPECT_EQ(BytesOf(*tokenizer, tokens.ids), "<|begin_of_text|>Speak speak<|endoftext|>");
  EXPECT_THAT(TrainedRuns(*tokenizer, tokens), ElementsAre(" speak<|endoftext|>"));
}

TEST(TokenizeChat, TrainsOnATokenThatBeginsInThePromptAndEndsInTheCompletion) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  ASSERT_EQ(tokenizer->Encode(" the").value().size(), 1);
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens tokens,
      TokenizeChat(*tokenizer, nullptr, PromptCompletion{"by t", "he"}, TrainOn::kAnswers));
  EXPECT_THAT(TrainedRuns(*tokenizer, tokens), ElementsAre(" the<|endoftext|>"));
}

TEST(TokenizeChat, TakesAPromptForAMessageIfThereIsATemplate) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  const ChatTemplate chat = Chat("phi3");
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens tokens,
      TokenizeChat(*tokenizer, &chat, PromptCompletion{"Speak", "No"}, TrainOn::kAnswers));
  EXPECT_EQ(BytesOf(*tokenizer, tokens.ids),
            "<|user|>\nSpeak<|end|>\n<|assistant|>\nNo<|end|>\n<|endoftext|>");
  EXPECT_THAT(TrainedRuns(*tokenizer, tokens), ElementsAre("No<|end|>"));
}

TEST(TokenizeChat, EndsAPlainTextOnce) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  const ChatTemplate chat = Chat("chatml");  // does not matter
  for (const char* const text : {"the", "the<|endoftext|>"}) {
    ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                         TokenizeChat(*tokenizer, &chat, PlainText{text}, TrainOn::kAnswers));
    EXPECT_EQ(BytesOf(*tokenizer, tokens.ids), "the<|endoftext|>");
    EXPECT_THAT(tokens.trained, Each(1));
  }
  ASSERT_OK_AND_ASSIGN(const ChatTokens empty,
                       TokenizeChat(*tokenizer, nullptr, PlainText{""}, TrainOn::kAnswers));
  EXPECT_THAT(empty.ids, ElementsAre(0));
}

TEST(TokenizeChat, RefusesAConversationWithoutATemplateOrThatItRefuses) {
  const TokenizerPointer tokenizer = LoadFile(TokenizerFixture("gpt2.json"));
  EXPECT_THAT(TokenizeChat(*tokenizer, nullptr, TwoAnswers(), TrainOn::kAll),
              IsRefused("a conversation needs a chat template; name one with --chat-template"));
  const ChatTemplate chat = Chat("gemma");
  EXPECT_THAT(TokenizeChat(*tokenizer, &chat, Conversation{{{"assistant", "a"}}}, TrainOn::kAll),
              IsRefused("message 1 is of the assistant"));
}

TEST(EncodeChatPrompt, EndsWhereTheAnswerBegins) {
  const json file = WithTokens(TokenizerFixture("llama3.json"),
                               {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  const TokenizerPointer tokenizer = LoadFile(file);
  const ChatTemplate chat = Chat("llama3");
  const std::vector<ChatMessage>& messages = TwoAnswers().messages;
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> prompt,
                       EncodeChatPrompt(*tokenizer, chat, absl::MakeSpan(messages).first(4)));
  ASSERT_OK_AND_ASSIGN(const ChatTokens tokens,
                       TokenizeChat(*tokenizer, &chat, TwoAnswers(), TrainOn::kAnswers));
  ASSERT_LT(prompt.size(), tokens.ids.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.ids.begin()));
  const Marks rest(tokens.trained.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                   tokens.trained.end());
  EXPECT_THAT(rest, Each(1));
}

}  // namespace
}  // namespace stagecoach::engine
