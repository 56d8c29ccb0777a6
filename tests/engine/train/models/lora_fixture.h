#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_MODELS_LORA_FIXTURE_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_MODELS_LORA_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/data/dataset.h"
#include "engine/models/model.h"
#include "engine/models/transformer.h"
#include "engine/nn/parsing/lora.h"
#include "engine/train/trainer.h"
#include "partition/plan/plan.h"

namespace stagecoach::engine {

// A model and adapters that PEFT has trained (tests/fixtures/lora/make.py and quantized/make.py):
// "lora/llama".
struct LoraFixture {
  static constexpr int64_t kBatchRows = 4;
  static constexpr int kSteps = 20;

  explicit LoraFixture(const std::string& name);

  std::string FolderOf(const std::string& adapters) const { return folder + "/" + adapters; }
  // Returns options of the training that the fixture has the results of.
  TrainerOptions Options() const;
  // Returns a trainer that starts from the model and the initial adapters.
  std::unique_ptr<Trainer> Start(const partition::Plan& plan, const TrainerOptions& options) const;

  std::string folder;
  Transformer transformer;  // with the context of the samples
  LoraOptions lora;
  std::string text;  // the model file
  Model model;
  std::shared_ptr<const Dataset> data;
  nlohmann::json expected;
};

// Returns the path of a folder or file below tests/fixtures, and what a file there has.
std::string FixturePath(const std::string& name);
nlohmann::json ReadFixture(const std::string& name);

// Returns the model that a file describes for samples of as many tokens as a transformer's context.
Model ModelFor(const Transformer& transformer, const std::string& text);

// Sets a trainer's parameters to those of a model's folder and, unless it is empty, one of
// adapters.
void SetValues(Trainer& trainer, const Transformer& transformer, const std::string& base,
               const std::string& adapters);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_MODELS_LORA_FIXTURE_H_
