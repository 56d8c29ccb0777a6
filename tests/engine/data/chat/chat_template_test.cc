#include "engine/data/chat/chat_template.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kNotFound;
using nlohmann::json;
using ::stagecoach::testing::Edited;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::Not;

using Messages = std::vector<ChatMessage>;

const json& RenderedFixture() {
  static const auto* const fixture = new json(json::parse(
      base::ReadFile(absl::StrCat(STAGECOACH_CHAT_FIXTURES, "/rendered.json"), 1 << 20).value()));
  return *fixture;
}

Messages MessagesOf(const json& conversation) {
  Messages messages;
  for (const json& message : conversation) {
    messages.push_back({message["role"], message["content"]});
  }
  return messages;
}

std::vector<std::string> AnswersOf(const RenderedChat& rendered) {
  std::vector<std::string> answers;
  for (const ByteRange& answer : rendered.answers) {
    answers.push_back(rendered.text.substr(answer.begin, answer.end - answer.begin));
  }
  return answers;
}

// Writes a program in Jinja into the configuration of a tokenizer; returns the folder.
std::string FolderWithConfig(const json& program) {
  const std::string folder = TestDirectory();
  WriteTestFile(folder, "tokenizer_config.json",
                json{{"model_max_length", 8}, {"chat_template", program}}.dump());
  return folder;
}

class BuiltInTemplate : public ::testing::TestWithParam<std::string> {};

TEST_P(BuiltInTemplate, WritesTheTextsOfTheProgramInJinja) {
  ASSERT_OK_AND_ASSIGN(const ChatTemplate chat, FindChatTemplate(GetParam()));
  const json& texts = RenderedFixture()["texts"][GetParam()];
  const json& conversations = RenderedFixture()["conversations"];
  ASSERT_EQ(texts.size(), conversations.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const Messages messages = MessagesOf(conversations[i]);
    for (const bool for_answer : {false, true}) {
      const absl::StatusOr<RenderedChat> rendered = RenderChat(chat, messages, for_answer);
      const json& expected = texts[i][for_answer ? 1 : 0];
      if (expected.is_null()) {
        EXPECT_THAT(rendered, IsRefused("message")) << conversations[i];
        continue;
      }
      ASSERT_OK(rendered.status()) << conversations[i];
      EXPECT_EQ(rendered->text, expected.get<std::string>());
    }
  }
}

TEST_P(BuiltInTemplate, KnowsWhereAnswersAre) {
  ASSERT_OK_AND_ASSIGN(const ChatTemplate chat, FindChatTemplate(GetParam()));
  const Messages messages = {
      {"user", "One?"}, {"assistant", "1"}, {"user", "Two?"}, {"assistant", "2"}};
  ASSERT_OK_AND_ASSIGN(const RenderedChat rendered, RenderChat(chat, messages, false));
  const std::string space = absl::StartsWith(GetParam(), "mistral") ? " " : "";
  EXPECT_THAT(AnswersOf(rendered), ElementsAre(absl::StrCat(space, "1", chat.stop),
                                               absl::StrCat(space, "2", chat.stop)));
  // An answer begins where a text that asks for it ends.
  for (const size_t before : {1, 3}) {
    ASSERT_OK_AND_ASSIGN(const RenderedChat asks,
                         RenderChat(chat, absl::MakeSpan(messages).first(before), true));
    EXPECT_EQ(asks.text, rendered.text.substr(0, rendered.answers[before / 2].begin));
  }
}

TEST_P(BuiltInTemplate, IsRecognizedByItsProgram) {
  const json program = RenderedFixture()["programs"][GetParam()];
  ASSERT_OK_AND_ASSIGN(const ChatTemplate of_config,
                       RecognizeChatTemplate(FolderWithConfig(program)));
  EXPECT_EQ(of_config.name, GetParam());
  ASSERT_OK_AND_ASSIGN(const ChatTemplate built_in, FindChatTemplate(GetParam()));
  EXPECT_EQ(of_config.default_system, built_in.default_system);
  // The file counts before the configuration, and quotes do not matter.
  const std::string folder = FolderWithConfig("{{ messages }}");
  WriteTestFile(folder, "chat_template.jinja",
                absl::StrReplaceAll(program.get<std::string>(), {{"'", "\""}}));
  ASSERT_OK_AND_ASSIGN(const ChatTemplate of_file, RecognizeChatTemplate(folder));
  EXPECT_EQ(of_file.name, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, BuiltInTemplate, ::testing::ValuesIn(ChatTemplateNames()),
                         [](const auto& name) {
                           return absl::StrReplaceAll(name.param, {{".", "_"}, {"-", "_"}});
                         });

TEST(ChatTemplates, AreAllThoseOfTheFixture) {
  for (const auto& [name, texts] : RenderedFixture()["texts"].items()) {
    EXPECT_OK(FindChatTemplate(name)) << name;
  }
  EXPECT_EQ(RenderedFixture()["texts"].size(), ChatTemplateNames().size());
}

TEST(ChatTemplates, AreFoundByNameOnly) {
  const Refusal<std::string> refusals[] = {
      {"chatlm",
       "there is no chat template \"chatlm\", expected one of chatml, qwen2.5, llama3, llama3.1, "
       "mistral, mistral-v3, gemma, phi3, alpaca; did you mean \"chatml\"?"},
      {"", "there is no chat template \"\""},
      {"zzzzzzz", Not(::testing::HasSubstr("did you mean"))},
  };
  ExpectRefusals(FindChatTemplate, refusals);
}

TEST(RenderChat, RefusesConversationsThatTheTemplateCannotWrite) {
  struct Case {
    std::string chat;
    Messages messages;
  };
  const auto render = [](const Case& one) {
    return RenderChat(FindChatTemplate(one.chat).value(), one.messages, false);
  };
  const Refusal<Case> refusals[] = {
      {{"chatml", {}}, "the conversation has no message"},
      {{"chatml", {{"user", "a"}, {"tool", "b"}}},
       "message 2 has the role \"tool\", expected system, user or assistant"},
      {{"chatml", {{"user", "a"}, {"system", "b"}}},
       "message 2 is of the system, which only the first may be"},
      {{"mistral", {{"user", "a"}, {"user", "b"}}},
       "message 2 is of the user, expected one of the assistant: in mistral, user and assistant "
       "take turns"},
      {{"mistral", {{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"assistant", "c"}}},
       "message 4 is of the assistant, expected one of the user"},
      {{"gemma", {{"assistant", "a"}}}, "message 1 is of the assistant, expected one of the user"},
      {{"gemma", {{"system", "a"}}},
       "a user message is missing, into which gemma puts the system message"},
  };
  ExpectRefusals(render, refusals);
}

constexpr char kTemplateFile[] = R"(# one's own
begin = "<s>"
stop = "</s>"
end = "!"
default_system = "Be brief."
system_place = "first-user"
[system]
begin = "<<"
end = ">>"
[user]
begin = "U:"
end = "\n"
trim = true
[assistant]
begin = "A: "
end = "\n"
)";

TEST(LoadChatTemplate, ReadsTheFieldsOfATemplate) {
  const std::string path = WriteTestFile(TestDirectory(), "chat.toml", kTemplateFile);
  ASSERT_OK_AND_ASSIGN(const ChatTemplate chat, LoadChatTemplate(path));
  EXPECT_EQ(chat.name, path);
  const Messages messages = {
      {"assistant", "Hi"}, {"user", " a "}, {"assistant", " b "}, {"user", "c"}};
  ASSERT_OK_AND_ASSIGN(const RenderedChat rendered, RenderChat(chat, messages, false));
  EXPECT_EQ(rendered.text, "<s>A: Hi</s>\nU:<<Be brief.>>a\nA:  b </s>\nU:c\n!");
  EXPECT_THAT(AnswersOf(rendered), ElementsAre("Hi</s>", " b </s>"));
  // What asks for an answer is what begins one, unless the file says otherwise.
  EXPECT_EQ(chat.answer_prompt, "A: ");
}

TEST(LoadChatTemplate, WithoutPlaceForASystemMessageRefusesIt) {
  const std::string path = WriteTestFile(TestDirectory(), "chat.toml",
                                         "stop = \"$\"\n[user]\nend = \"\\n\"\n[assistant]\n");
  ASSERT_OK_AND_ASSIGN(const ChatTemplate chat, LoadChatTemplate(path));
  ASSERT_OK_AND_ASSIGN(const RenderedChat rendered,
                       RenderChat(chat, Messages{{"user", "a"}, {"assistant", "b"}}, true));
  EXPECT_EQ(rendered.text, "a\nb$");
  EXPECT_THAT(RenderChat(chat, Messages{{"system", "a"}, {"user", "b"}}, true),
              IsRefused("message 1 is of the system, which has no place in "));
}

TEST(LoadChatTemplate, RefusesFilesThatAreNotOne) {
  const auto load = [](const std::string& text) {
    return LoadChatTemplate(WriteTestFile(TestDirectory(), "chat.toml", text));
  };
  const std::string good = kTemplateFile;
  const Refusal<std::string> refusals[] = {
      {"", "chat.toml:1:1: $: the key \"user\" is missing"},
      {"begin = <s>", "chat.toml:1:9: "},
      {Edited(good, "begin = '<s>'", "bgin = '<s>'"),
       "chat.toml:2:1: $: unknown key \"bgin\"; did you mean \"begin\"?"},
      {Edited(good, "trim = true", "trims = true"), "unknown key \"trims\""},
      {Edited(good, "trim = true", "trim = 1"), "$.user.trim"},
      {Edited(good, "first-user", "first-usr"),
       "$.system_place: \"first-usr\" is not known, expected one of turn, first-user, last-user; "
       "did you mean \"first-user\"?"},
      {"default_system = \"a\"\n[user]\n[assistant]\n",
       "chat.toml:1:1: $.default_system: has no place, since there is no [system]"},
  };
  ExpectRefusals(load, refusals);
  EXPECT_THAT(LoadChatTemplate("/none.toml"), StatusIs(kNotFound, "/none.toml"));
}

TEST(RecognizeChatTemplate, TakesTheDefaultOfSeveral) {
  const json programs = RenderedFixture()["programs"];
  const json several = {{{"name", "tool_use"}, {"template", programs["gemma"]}},
                        {{"name", "default"}, {"template", programs["llama3"]}}};
  ASSERT_OK_AND_ASSIGN(const ChatTemplate chat, RecognizeChatTemplate(FolderWithConfig(several)));
  EXPECT_EQ(chat.name, "llama3");
}

TEST(RecognizeChatTemplate, TakesADefaultSystemMessageOfChatMl) {
  const std::string qwen = RenderedFixture()["programs"]["qwen2.5"];
  const auto recognize = [&](const std::string& system) {
    return RecognizeChatTemplate(FolderWithConfig(absl::StrReplaceAll(
        qwen, {{"You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", system}})));
  };
  ASSERT_OK_AND_ASSIGN(const ChatTemplate other, recognize("You are a helpful assistant."));
  EXPECT_EQ(other.name, "chatml");
  EXPECT_EQ(other.default_system, "You are a helpful assistant.");
  EXPECT_THAT(recognize("Answer within \\\\boxed{}."), StatusIs(kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(
      const ChatTemplate text,
      RecognizeChatTemplate(FolderWithConfig(
          "{% if first %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}<|im_start|>user\n")));
  EXPECT_EQ(text.default_system, "Be brief.");
}

TEST(RecognizeChatTemplate, RefusesProgramsThatWriteOtherTexts) {
  const json programs = RenderedFixture()["programs"];
  const auto with = [&](const char* name, const char* piece, const char* other) {
    return absl::StrReplaceAll(programs[name].get<std::string>(), {{piece, other}});
  };
  const Refusal<json> refusals[] = {
      {"{{ messages }}",
       "tokenizer_config.json: the chat template is none of those known (chatml, qwen2.5, llama3, "
       "llama3.1, mistral, mistral-v3, gemma, phi3, alpaca); name one with --chat-template"},
      {"", "none of those known"},
      {with("chatml", "m.content", "'<think>' + m.content"), "none of those known"},
      {with("chatml", "m.content", "m.content | trim"), "none of those known"},
      {"{% set s = 'You are X.' %}" + programs["chatml"].get<std::string>(), "none of those known"},
      {with("mistral", "' [INST] '", "'[INST] '"), "none of those known"},
      {with("mistral-v3", "\"[INST] \"", "\"[INST]\""), "none of those known"},
      {with("phi3", "{% else %}{{ eos_token }}", ""), "none of those known"},
      {json::array({{{"name", "tool_use"}, {"template", "x"}}}),
       "none of its chat templates is called \"default\""},
  };
  const auto recognize = [](const json& program) {
    return RecognizeChatTemplate(FolderWithConfig(program));
  };
  ExpectRefusals(recognize, refusals, kFailedPrecondition);
}

TEST(RecognizeChatTemplate, SaysThatAFolderHasNone) {
  const std::string folder = TestDirectory();
  const std::string says =
      folder + " has no chat template, neither chat_template.jinja nor \"chat_template\" in ";
  EXPECT_THAT(RecognizeChatTemplate(folder), StatusIs(kNotFound, says));
  WriteTestFile(folder, "tokenizer_config.json", "{}");
  EXPECT_THAT(RecognizeChatTemplate(folder), StatusIs(kNotFound, says));
  WriteTestFile(folder, "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_THAT(RecognizeChatTemplate(folder), StatusIs(kNotFound, says));
  WriteTestFile(folder, "tokenizer_config.json", R"({"chat_template": 1})");
  EXPECT_THAT(RecognizeChatTemplate(folder),
              StatusIs(kInvalidArgument, "$.chat_template: expected a string or a list"));
  WriteTestFile(folder, "tokenizer_config.json", "{");
  EXPECT_THAT(RecognizeChatTemplate(folder), IsRefused("tokenizer_config.json:1:2: "));
}

}  // namespace
}  // namespace stagecoach::engine
