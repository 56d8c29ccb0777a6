#include "tests/engine/train/models/lora_fixture.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/peft.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/models/model_file.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
std::string FixturePath(const std::string& name) {
  return absl::StrCat(STAGECOACH_TEST_FIXTURES, "/", name);
}

nlohmann::json ReadFixture(const std::string& name) {
  return nlohmann::json::parse(base::ReadFile(FixturePath(name), 1 << 24).value());
}

LoraFixture::LoraFixture(const std::string& name)
    : folder(FixturePath(name)),
      transformer(ReadHuggingFaceConfigFile(folder + "/base").value()),
      lora(ReadPeftConfig(folder + "/adapter_initial").value()),
      expected(ReadFixture(name + "/expected.json")) {
  std::vector<ChatTokens> examples;
  const nlohmann::json tokens = ReadFixture(name + "/tokens.json");
  for (const nlohmann::json& sample : tokens["samples"]) {
    ChatTokens& example = examples.emplace_back();
    example.ids = sample.get<std::vector<int32_t>>();
    example.trained.assign(example.ids.size(), 1);
  }
  if (!transformer.is_rotary()) transformer.positions = transformer.context;
  transformer.context = std::ssize(examples.front().ids) - 1;
  data = ChatDataset::Create(examples, transformer.context, transformer.vocabulary).value();
  text = absl::StrCat(ModelFileOf(transformer), "\n", LoraTableOf(lora));
  model = ModelFor(transformer, text);
}

Model ModelFor(const Transformer& transformer, const std::string& text) {
  return ParseModel(text, {.input = Shape{transformer.context},
                           .vocabulary = transformer.vocabulary,
                           .classes = transformer.vocabulary})
      .value();
}

TrainerOptions LoraFixture::Options() const {
  return {.optimizer = Optimizer::AdamW(),
          .learning_rate = LearningRate::Constant(1e-2F),
          .draws_parameters = false};
}

std::unique_ptr<Trainer> LoraFixture::Start(const partition::Plan& plan,
                                            const TrainerOptions& options) const {
  std::unique_ptr<Trainer> trainer = MakeTrainer(model, plan, options);
  SetValues(*trainer, transformer, folder + "/base", FolderOf("adapter_initial"));
  return trainer;
}

void SetValues(Trainer& trainer, const Transformer& transformer, const std::string& base,
               const std::string& adapters) {
  const HuggingFaceFolder parameters = HuggingFaceFolder::Open(base, transformer).value();
  EXPECT_OK(trainer.SetParameters(std::bind_front(&HuggingFaceFolder::Read, parameters)));
  if (adapters.empty()) return;
  const PeftFolder adapted = PeftFolder::Open(adapters, transformer).value();
  EXPECT_OK(trainer.SetAdapters(std::bind_front(&PeftFolder::Read, adapted)));
}

}  // namespace stagecoach::engine
