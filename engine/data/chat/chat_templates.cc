#include "engine/data/chat/chat_templates.h"

#include <string>

namespace stagecoach::engine {
namespace {

using SystemPlace = ChatTemplate::SystemPlace;

ChatTemplate ChatMl(const char* name) {
  return {.name = name,
          .system = {"<|im_start|>system\n", "<|im_end|>\n"},
          .user = {"<|im_start|>user\n", "<|im_end|>\n"},
          .assistant = {"<|im_start|>assistant\n", "\n"},
          .stop = "<|im_end|>",
          .answer_prompt = "<|im_start|>assistant\n"};
}

ChatTemplate Qwen25() {
  ChatTemplate chat = ChatMl("qwen2.5");
  chat.default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  return chat;
}

ChatTemplate Llama3(const char* name) {
  return {.name = name,
          .begin = "<|begin_of_text|>",
          .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", true},
          .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", true},
          .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "", true},
          .stop = "<|eot_id|>",
          .answer_prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n"};
}

ChatTemplate Llama31() {
  ChatTemplate chat = Llama3("llama3.1");
  chat.system.begin += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  chat.default_system = "";
  return chat;
}

ChatTemplate Mistral() {
  return {.name = "mistral",
          .begin = "<s>",
          .system = {"", "\n\n"},
          .user = {" [INST] ", " [/INST]"},
          .assistant = {" ", ""},
          .stop = "</s>",
          .system_place = SystemPlace::kFirstUser,
          .alternates = true};
}

ChatTemplate MistralV3() {
  ChatTemplate chat = Mistral();
  chat.name = "mistral-v3";
  chat.user = {"[INST] ", "[/INST]"};
  chat.assistant.trims = true;
  chat.system_place = SystemPlace::kLastUser;
  return chat;
}

ChatTemplate Gemma() {
  return {.name = "gemma",
          .begin = "<bos>",
          .system = {"", "\n\n"},
          .user = {"<start_of_turn>user\n", "<end_of_turn>\n", true},
          .assistant = {"<start_of_turn>model\n", "\n", true},
          .stop = "<end_of_turn>",
          .answer_prompt = "<start_of_turn>model\n",
          .system_place = SystemPlace::kFirstUser,
          .alternates = true};
}

ChatTemplate Phi3() {
  return {.name = "phi3",
          .system = {"<|system|>\n", "<|end|>\n"},
          .user = {"<|user|>\n", "<|end|>\n"},
          .assistant = {"<|assistant|>\n", "\n"},
          .stop = "<|end|>",
          .answer_prompt = "<|assistant|>\n",
          .end = "<|endoftext|>"};
}

ChatTemplate Alpaca() {
  return {.name = "alpaca",
          .system = {"", "\n\n"},
          .user = {"### Instruction:\n", "\n\n"},
          .assistant = {"### Response:\n", "\n\n"},
          .answer_prompt = "### Response:\n",
          .default_system =
              "Below is an instruction that describes a task. Write a response that "
              "appropriately completes the request."};
}

}  // namespace

absl::Span<const BuiltInChatTemplate> BuiltInChatTemplates() {
  // A model whose template thinks, begins with a token of its own, or changes the content writes
  // other texts than ChatML, although it has its markers; so do the models of Phi 4.
  static const std::vector<const char*> chatml_has = {"<|im_start|>", "<|im_end|>"};
  static const std::vector<const char*> chatml_lacks = {"<think>", "bos_token",  "trim",
                                                        "strip(",  "<|im_sep|>", "<|startoftext|>"};
  static const auto* const rows = new std::vector<BuiltInChatTemplate>{
      {ChatMl("chatml"), chatml_has, chatml_lacks},
      // This one is recognized as ChatML with its default system message.
      {Qwen25(), {}, {}},
      {Llama3("llama3"),
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "trim", "bos_token"},
       {"Cutting Knowledge Date", "<think>", "You are"}},
      {Llama31(),
       {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023", "trim",
        "bos_token"},
       {"<think>"}},
      {Mistral(),
       {"' [INST] '", "' [/INST]'", "' ' + message['content'] + eos_token", "bos_token"},
       {}},
      {MistralV3(),
       {"'[INST] ' + message['content'] + '[/INST]'", "' ' + message['content']|trim + eos_token",
        "bos_token"},
       {}},
      {Gemma(), {"<start_of_turn>", "<end_of_turn>", "'model'", "trim", "bos_token"}, {"<think>"}},
      {Phi3(),
       {"<|user|>", "<|end|>", "<|assistant|>", "{% else %}{{ eos_token }}"},
       {"bos_token", "'tools'", "trim"}},
      {Alpaca(),
       {"### Instruction:", "### Response:", "eos_token",
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request."},
       {"bos_token"}},
  };
  return *rows;
}

}  // namespace stagecoach::engine
