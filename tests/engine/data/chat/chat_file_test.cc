#include "engine/data/chat/chat_file.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;

// Writes each example in one line, behind the number of its own.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& contents) {
  std::vector<std::string> lines;
  const auto take = [&](int64_t line, const ChatExample& example) {
    std::string text = absl::StrCat(line, ":");
    if (const auto* const conversation = std::get_if<Conversation>(&example)) {
      for (const ChatMessage& message : conversation->messages) {
        absl::StrAppend(&text, " ", message.role, "=", message.content);
      }
    } else if (const auto* const pair = std::get_if<PromptCompletion>(&example)) {
      absl::StrAppend(&text, " ", pair->prompt, " -> ", pair->completion);
    } else {
      absl::StrAppend(&text, " ", std::get<PlainText>(example).text);
    }
    lines.push_back(std::move(text));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadChatFile(WriteTestFile(TestDirectory(), "chat.jsonl", contents), take));
  return lines;
}

TEST(ChatFile, HasConversationsInEitherSpelling) {
  ASSERT_OK_AND_ASSIGN(
      const auto lines,
      ReadLines(
          R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},)"
          R"( {"role": "assistant", "content": "a", "weight": 1, "tool_calls": []}], "id": 7})"
          "\n"
          R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"},)"
          R"( {"from": "gpt", "value": "a"}, {"from": "user", "value": "v"}]})"
          "\n"));
  EXPECT_THAT(lines, ElementsAre("1: system=s user=u assistant=a",
                                 "2: system=s user=u assistant=a user=v"));
}

TEST(ChatFile, HasPromptsOrTexts) {
  EXPECT_THAT(ReadLines(R"({"prompt": "1 + 1 =", "completion": " 2"})").value(),
              ElementsAre("1: 1 + 1 = ->  2"));
  EXPECT_THAT(ReadLines(R"({"text": "Gr\u00fc\u00dfe\n"})").value(),
              ElementsAre("1: Gr\u00fc\u00dfe\n"));
}

TEST(ChatFile, IgnoresKeysThatMakeNoSecondKind) {
  EXPECT_THAT(
      ReadLines(
          R"({"prompt": "u", "prompt_id": 1, "messages": [{"role": "user", "content": "u"}]})")
          .value(),
      ElementsAre("1: user=u"));
  EXPECT_THAT(ReadLines(R"({"messages": null, "text": "a", "completion": null})").value(),
              ElementsAre("1: a"));
}

TEST(ChatFile, SkipsBlankLinesCarriageReturnsAndAByteOrderMark) {
  EXPECT_THAT(
      ReadLines("\xEF\xBB\xBF{\"text\": \"a\"}\r\n\r\n \t\n  {\"text\": \"b\\r\\n\"}").value(),
      ElementsAre("1: a", "4: b\r\n"));
}

TEST(ChatFile, TakesLongLines) {
  const std::string text(3 << 20, 'x');
  EXPECT_THAT(ReadLines(absl::StrCat("{\"text\": \"", text, "\"}\n")).value(),
              ElementsAre("1: " + text));
}

TEST(ChatFile, RefusesLinesThatAreNoExample) {
  const std::string good = "{\"text\": \"a\"}\n";
  const auto messages = [](const std::string& list) {
    return absl::StrCat("{\"messages\": ", list, "}");
  };
  const Refusal<std::string> refusals[] = {
      {"", "chat.jsonl: has no example"},
      {"\n\r\n", "chat.jsonl: has no example"},
      {good + "{\"text\": }", "chat.jsonl:2:10: "},
      {good + "  {\"text\": }", "chat.jsonl:2:12: "},
      {good + "{\"text\": \"a\"} {}", "chat.jsonl:2:15: "},
      {good + "{\"text\": \"\xFF\"}", "chat.jsonl:2:"},
      {good + "[]", "chat.jsonl:2: $: "},
      {good + "{\"text\": \"a\", \"text\": \"a\"}", "chat.jsonl:2:"},
      {good + "\n{\"txt\": \"a\"}",
       "chat.jsonl:3: is no example: expected \"messages\", \"conversations\", \"prompt\" and "
       "\"completion\", or \"text\""},
      {"{\"prompt\": \"a\"}", "chat.jsonl:1: has a \"prompt\" but no \"completion\""},
      {"{\"completion\": \"a\"}", "has a \"completion\" but no \"prompt\""},
      {"{\"prompt\": \"a\", \"completion\": [\"b\"]}", "chat.jsonl:1: $.completion: "},
      {"{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}",
       "is of more than one kind: has \"text\" and \"prompt\""},
      {good + messages(R"([{"role": "user", "content": "a"}])"),
       "chat.jsonl:2: is a conversation, but line 1 is a text"},
      {messages("[]"), "chat.jsonl:1: $.messages: has no message"},
      {messages("\"a\""), "$.messages: "},
      {messages("[\"a\"]"), "$.messages[0]: "},
      {messages(R"([{"role": "user"}])"), "$.messages[0]: the key \"content\" is missing"},
      {messages(R"([{"role": "usr", "content": "a"}])"),
       "$.messages[0].role: \"usr\" is not known, expected one of system, user, assistant; did "
       "you mean \"user\"?"},
      {messages(R"([{"role": "user", "content": [{"type": "text", "text": "a"}]}])"),
       "chat.jsonl:1: $.messages[0].content: is a list of parts, which is not supported"},
      {messages(R"([{"role": "assistant", "content": "", "tool_calls": [{}]}])"),
       "$.messages[0].tool_calls: calls of tools are not supported"},
      {R"({"conversations": [{"from": "bot", "value": "a"}]})", "$.conversations[0].from: \"bot\""},
      {R"({"conversations": [{"role": "user", "content": "a"}]})",
       "$.conversations[0]: the key \"from\" is missing"},
  };
  ExpectRefusals(ReadLines, refusals);
  const auto take = [](int64_t /*line*/, const ChatExample& /*example*/) {
    return absl::OkStatus();
  };
  EXPECT_THAT(ReadChatFile("/none.jsonl", take), StatusIs(absl::StatusCode::kNotFound, "/none"));
}

TEST(ChatFile, EndsWhereTheTakerFails) {
  int taken = 0;
  const std::string path =
      WriteTestFile(TestDirectory(), "chat.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n{");
  EXPECT_THAT(ReadChatFile(path,
                           [&](int64_t /*line*/, const ChatExample& /*example*/) {
                             return ++taken == 2 ? absl::CancelledError("enough")
                                                 : absl::OkStatus();
                           }),
              StatusIs(absl::StatusCode::kCancelled, absl::StrCat(path, ":3: enough")));
  EXPECT_EQ(taken, 2);
}

}  // namespace
}  // namespace stagecoach::engine
