// Folders of PEFT's that are not what a model's adapters are; lora_test.cc reads good ones.
#include "engine/checkpoint/peft.h"

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/models/transformer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/models/lora_fixture.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::ElementsAre;

using nlohmann::json;

// Reads a fixture's adapters after a change of their config.
absl::Status OpenAfter(const Change<json>& change) {
  const LoraFixture fixture("lora/qwen2");
  const TestFolder folder;
  const std::string from = fixture.FolderOf("adapter_final"), to = folder.path().string();
  std::filesystem::copy(
      from, to,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  const std::string path = to + "/adapter_config.json";
  json config = json::parse(base::ReadFile(path, 1 << 20).value());
  change(config);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  RETURN_IF_ERROR(base::WriteFileAtomically(path, config.dump()));
  return PeftFolder::Open(to, fixture.transformer).status();
}

TEST(PeftFolder, AllowsWhatChangesNothing) {
  EXPECT_OK(OpenAfter([](json&) {}));
  EXPECT_OK(OpenAfter([](json& config) {
    config["lora_dropout"] = 0.5;
    config["base_model_name_or_path"] = "somewhere";
    config["a_key_of_later_versions"] = nullptr;
    config["another"] = false;
  }));
}

TEST(PeftFolder, RefusesWhatAdaptersHereDoNotDo) {
  const auto with = [](const char* key, const json& value) {
    return Change<json>([=](json& config) { config[key] = value; });
  };
  const auto without = [](const char* key) {
    return Change<json>([=](json& config) { config.erase(key); });
  };
  const char* const not_done = "is not supported";
  const Refusal<Change<json>> refusals[] = {
      {with("peft_type", "LOHA"), "$.peft_type: is not \"LORA\""},
      {without("r"), "adapter_config.json:1:1: $: the key \"r\" is missing"},
      {with("r", 0), "$.r"},
      {with("lora_alpha", 0), "$.lora_alpha"},
      {with("lora_dropout", 1), "$.lora_dropout"},
      {with("bias", "all"), "$.bias: is not \"none\""},
      {without("target_modules"), "$.target_modules: is missing"},
      {with("target_modules", ".*_proj"), "expected a list of names, or \"all-linear\""},
      {with("target_modules", json::array()), "expected a list of names, or \"all-linear\""},
      {with("use_dora", true), not_done},
      {with("rank_pattern", json{{"q_proj", 8}}), not_done},
      {with("alpha_pattern", json{{"q_proj", 8}}), not_done},
      {with("layers_to_transform", json{1}), not_done},
      {with("modules_to_save", json{"mlp"}),
       "$.modules_to_save[0]: is \"mlp\": only embeddings, heads and norms"},
      {with("modules_to_save", json{"lm_head", "embed_tokens"}),
       "$.modules_to_save: the head's weight is the embedding's table"},
      {with("modules_to_save", json{"model.norm"}),
       "layers.0.input_layernorm.weight\" is missing: layers that are trained as a whole are all "
       "of "
       "a kind here"},
      {with("lora_bias", true), not_done},
      {with("a_key_of_later_versions", 1), "$.a_key_of_later_versions: is not supported"},
      // The tensors are other ones then.
      {with("r", 4),
       "the tensor \"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\" "
       "has the shape [3, 24], expected [4, 24]"},
      {with("target_modules", json{"q_proj"}),
       "v_proj.lora_A.weight\", which the model does not have"},
      {with("target_modules", json{"q_proj", "k_proj", "v_proj"}),
       "k_proj.lora_A.weight\" is missing"},
  };
  ExpectRefusals(OpenAfter, refusals);
}

TEST(PeftFolder, IsOneWithAConfig) {
  const TestFolder folder;
  EXPECT_FALSE(IsPeftFolder(folder.path().string()));
  EXPECT_FALSE(IsPeftFolder("rank=16"));
  EXPECT_TRUE(IsPeftFolder(LoraFixture("lora/gpt2").FolderOf("adapter_initial")));
}

// The places are in the whole weight, whichever parts have adapters.
TEST(AdapterPlaces, AreThoseOfTheTargetsInTheWholeWeight) {
  Transformer model = {.family = TransformerFamily::kLlama,
                       .blocks = 1,
                       .width = 8,
                       .heads = 4,
                       .kv_heads = 2,
                       .hidden = 12,
                       .rotary_base = 1e4};
  const auto places_of = [&](const std::vector<std::string>& targets) {
    std::vector<std::string> places;
    for (const AdapterPlace& place : AdapterPlacesOf(model, {.targets = targets})) {
      places.push_back(absl::StrCat(place.ParameterOf("lora_A"), " ", place.TensorOf("lora_B"), " ",
                                    place.inputs, " ", place.first, "+", place.outputs));
    }
    return places;
  };
  const std::string theirs = "base_model.model.model.layers.0.";
  EXPECT_THAT(places_of({"v_proj", "up_proj", "down_proj"}),
              ElementsAre(absl::StrCat("layer 1: 1.v_proj.lora_A ", theirs,
                                       "self_attn.v_proj.lora_B.weight 8 12+4"),
                          absl::StrCat("layer 2: 1.up_proj.lora_A ", theirs,
                                       "mlp.up_proj.lora_B.weight 8 12+12"),
                          absl::StrCat("layer 2: 3.down_proj.lora_A ", theirs,
                                       "mlp.down_proj.lora_B.weight 12 0+8")));
  model.has_joined_tensors = true;
  EXPECT_THAT(places_of({"qkv_proj", "gate_up_proj"}),
              ElementsAre(absl::StrCat("layer 1: 1.qkv_proj.lora_A ", theirs,
                                       "self_attn.qkv_proj.lora_B.weight 8 0+16"),
                          absl::StrCat("layer 2: 1.gate_up_proj.lora_A ", theirs,
                                       "mlp.gate_up_proj.lora_B.weight 8 0+24")));
}

}  // namespace
}  // namespace stagecoach::engine
