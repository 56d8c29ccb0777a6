// Adapters of frozen models, compared with what PEFT and PyTorch computed in float64
// (tests/fixtures/lora/make.py and tests/fixtures/quantized/make.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/peft.h"
#include "engine/generate/generator.h"
#include "engine/models/model_file.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/models/lora_fixture.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;

constexpr double kLoraTolerance =
    1e-5;  // relative to the largest value, as in transformers_test.cc
constexpr int kLoraMicroBatches = 4;

void ExpectClose(absl::Span<const float> ours, const std::vector<float>& theirs,
                 const std::string& what, double tolerance = kLoraTolerance) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  double largest = 0.0, error = 0.0;
  for (size_t i = 0; i < ours.size(); ++i) {
    largest = std::max<double>(largest, std::fabs(theirs[i]));
    error = std::max<double>(error, std::fabs(double{ours[i]} - double{theirs[i]}));
  }
  EXPECT_GT(largest, 0.0) << what;
  EXPECT_LE(error, tolerance * largest) << what;
}

// The numbers of arrays in arrays, one after the other.
std::vector<float> Flat(const nlohmann::json& numbers) {
  std::vector<float> flat;
  for (const nlohmann::json& element : numbers) {
    if (!element.is_array()) {
      flat.push_back(element.get<float>());
      continue;
    }
    const std::vector<float> inner = Flat(element);
    flat.insert(flat.end(), inner.begin(), inner.end());
  }
  return flat;
}

std::vector<double> Train(Trainer& trainer, const LoraFixture& fixture, int first, int steps) {
  std::vector<double> losses;
  for (int step = first; step < first + steps; ++step) {
    const auto rows = Rows(step * LoraFixture::kBatchRows, LoraFixture::kBatchRows);
    losses.push_back(trainer.Step(*fixture.data, rows).value().loss);
  }
  return losses;
}

bool IsTrained(const ModelParameter& parameter) {
  return parameter.is_adapter || parameter.is_trained_base;
}

class Lora : public ::testing::TestWithParam<std::string> {
 protected:
  // One sample per micro-batch.
  partition::Plan PlanOver(int devices, const std::string& schedule,
                           const partition::Replication& replication = {}) const {
    return EvenPlan(fixture_.model, devices, schedule, kLoraMicroBatches, 1, 0, replication);
  }
  std::vector<float> LogitsOfFirst(Trainer& trainer, int64_t rows) const {
    std::vector<float> logits = trainer.Predict(*fixture_.data).value();
    logits.resize(
        static_cast<size_t>(rows * fixture_.transformer.context * fixture_.transformer.vocabulary));
    return logits;
  }

  const LoraFixture fixture_{GetParam()};
};

TEST_P(Lora, HasTheLogitsOfPeft) {
  const auto trainer = fixture_.Start(PlanOver(2, "1f1b"), fixture_.Options());
  ExpectClose(LogitsOfFirst(*trainer, 2), Flat(fixture_.expected["initial_logits"]), "logits");
}

// The schedules run B and W together and apart.
TEST_P(Lora, TrainsAsPeftDoesAndLeavesTheModelUnchanged) {
  const std::vector<double> losses = fixture_.expected["losses64"];
  const HuggingFaceFolder model =
      HuggingFaceFolder::Open(fixture_.folder + "/base", fixture_.transformer).value();
  const PeftFolder trained =
      PeftFolder::Open(fixture_.FolderOf("adapter_final"), fixture_.transformer).value();
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const auto trainer = fixture_.Start(PlanOver(3, schedule), fixture_.Options());
    const std::vector<double> ours = Train(*trainer, fixture_, 0, LoraFixture::kSteps);
    ASSERT_EQ(ours.size(), losses.size());
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(ours[step], losses[step], kLoraTolerance * losses[step]) << step;
    }
    for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
      if (parameter.is_copy()) continue;
      const std::vector<float> values = trainer->Parameter(parameter.name).value();
      std::vector<float> theirs(values.size());
      ASSERT_EQ(parameter.update.is_frozen(), !IsTrained(parameter)) << parameter.name;
      if (IsTrained(parameter)) {
        ASSERT_OK(trained.Read(parameter, TensorOf(theirs)));
        // AdamW divides by the size of a gradient, so that roundings of small ones show.
        ExpectClose(values, theirs, parameter.name, 3.0 * kLoraTolerance);
      } else {
        ASSERT_OK(model.Read({.name = parameter.name}, TensorOf(theirs)));
        EXPECT_EQ(values, theirs) << parameter.name;
      }
    }
  }
}

struct LoraAnswer {
  std::vector<double> losses;
  double evaluation_loss = 0.0;
  std::string hash;

  friend bool operator==(const LoraAnswer&, const LoraAnswer&) = default;
};

LoraAnswer AnswerOf(const LoraFixture& fixture, const partition::Plan& plan,
                    const TrainerOptions& options) {
  const auto trainer = fixture.Start(plan, options);
  LoraAnswer answer = {.losses = Train(*trainer, fixture, 0, 3)};
  answer.evaluation_loss = trainer->Evaluate(*fixture.data).value().loss;
  answer.hash = trainer->ParametersHash().value();
  const std::vector<DeviceReport> reports = trainer->Devices().value();
  for (const DeviceReport& device : reports) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
  }
  return answer;
}

TEST_P(Lora, HasTheSameBitsForEveryPartitionAndSchedule) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    if (!stagecoach::testing::HasOnCpu(precision).ok()) continue;
    TrainerOptions options = fixture_.Options();
    options.device.precision = precision;
    options.optimizer.clip_norm = precision == Precision::kBfloat16 ? 0.5F : 0.0F;
    const LoraAnswer expected = AnswerOf(fixture_, PlanOver(1, "gpipe"), options);
    for (const int devices : {2, 4}) {
      for (const char* schedule : {"1f1b", "zb-h1", "interleaved"}) {
        if (devices == 4 && std::string(schedule) == "interleaved") continue;  // too few layers
        EXPECT_TRUE(AnswerOf(fixture_, PlanOver(devices, schedule), options) == expected)
            << devices << " devices, " << schedule;
      }
    }
    const LoraAnswer halves =
        AnswerOf(fixture_, PlanOver(1, "gpipe", {.gradient_blocks = 2}), options);
    for (const bool shards : {false, true}) {
      if (shards && options.optimizer.waits_for_norm()) continue;
      const partition::Replication replicas = {
          .replicas = 2, .gradient_blocks = 2, .shards_optimizer = shards};
      EXPECT_TRUE(AnswerOf(fixture_, PlanOver(2, "1f1b", replicas), options) == halves) << shards;
    }
  }
}

TEST_P(Lora, HasTheSameBitsWithRecomputation) {
  const LoraAnswer expected = AnswerOf(fixture_, PlanOver(2, "1f1b"), fixture_.Options());
  partition::Plan plan = PlanOver(2, "1f1b");
  plan.recomputed = {1, 2, 3};
  EXPECT_TRUE(AnswerOf(fixture_, plan, fixture_.Options()) == expected);
}

// A frozen parameter takes its values once, in the activation type or as it is quantized; only the
// others have gradients and states.
TEST_P(Lora, NeedsNoGradientsOfFrozenParameters) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    if (!stagecoach::testing::HasOnCpu(precision).ok()) continue;
    ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                         AnalyzeModel(fixture_.model, {.micro_batch_rows = 1,
                                                       .optimizer = Optimizer::AdamW(),
                                                       .device = {.precision = precision}}));
    const kernels::DType type =
        precision == Precision::kBfloat16 ? kernels::DType::kBfloat16 : kernels::DType::kFloat32;
    std::vector<int64_t> trained(profile.layers.size()), resident(profile.layers.size());
    int64_t count = 0;
    for (const ModelParameter& parameter : profile.parameters.all()) {
      const auto layer = static_cast<size_t>(parameter.layer);
      const int64_t elements = parameter.shape.elements();
      if (IsTrained(parameter)) {
        if (!parameter.is_copy()) count += elements;
        trained[layer] += partition::AlignTensor(4 * elements);
        if (SizeOf(type) == 2) resident[layer] += partition::AlignTensor(2 * elements);
      } else if (parameter.quantized.has_value()) {
        resident[layer] += partition::AlignTensor(parameter.quantized->bytes());
      } else {
        resident[layer] += partition::AlignTensor(SizeOf(type) * elements);
      }
    }
    EXPECT_GT(count, 0);
    int64_t updated = 0;
    for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
      const partition::LayerMemory& memory = profile.layers[layer].memory;
      EXPECT_EQ(memory.parameter_bytes, trained[layer]) << layer;
      EXPECT_EQ(memory.optimizer_bytes, 2 * trained[layer]) << layer;
      EXPECT_EQ(memory.other_resident_bytes, resident[layer]) << layer;
      updated += profile.layers[layer].parameters;
    }
    EXPECT_EQ(updated, count);
    const bool has_embedding = fixture_.lora.trains("embedding");
    EXPECT_EQ(profile.layers.front().backward_weight_ns != 0.0, has_embedding);
    // Without it, nothing is to be summed.
    EXPECT_EQ(profile.collectives.ties != 0, has_embedding && fixture_.transformer.is_tied);
  }
}

// In both precisions a checkpoint has all values in float32, those of frozen parameters included.
TEST_P(Lora, ResumesOnAnotherPartition) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    if (!stagecoach::testing::HasOnCpu(precision).ok()) continue;
    TrainerOptions options = fixture_.Options();
    options.device.precision = precision;
    const TestFolder folder;
    const auto whole = fixture_.Start(PlanOver(1, "gpipe"), options);
    Train(*whole, fixture_, 0, 2);
    ASSERT_OK_AND_ASSIGN(const std::string saved, whole->Save(folder.path().string()));
    const std::vector<double> expected = Train(*whole, fixture_, 2, 2);
    const auto resumed = MakeTrainer(fixture_.model, PlanOver(3, "1f1b"), options);
    ASSERT_OK(resumed->Restore(saved));
    EXPECT_EQ(Train(*resumed, fixture_, 2, 2), expected);
    EXPECT_EQ(resumed->ParametersHash().value(), whole->ParametersHash().value());
  }
}

// Checkpoints of a run share the files of frozen parameters, as long as these have those values.
TEST_P(Lora, SavesFrozenParametersOnce) {
  namespace fs = std::filesystem;
  const TestFolder folder;
  const std::string run = folder.path().string();
  const auto trainer = fixture_.Start(PlanOver(2, "1f1b"), fixture_.Options());
  const auto save = [&](Trainer& of, int step) {
    Train(of, fixture_, step, 1);
    return of.Save(run, {.retention = {.newest = 9}}).value();
  };
  // Returns the number of names of each kind of file: that of frozen parameters, and the others.
  const auto names_of = [](const std::string& checkpoint) {
    std::pair<std::set<uintmax_t>, std::set<uintmax_t>> names;
    for (const auto& file : fs::directory_iterator(checkpoint)) {
      const bool is_frozen = absl::StrContains(file.path().string(), ".frozen.");
      (is_frozen ? names.first : names.second).insert(fs::hard_link_count(file.path()));
    }
    return names;
  };
  using Names = std::pair<std::set<uintmax_t>, std::set<uintmax_t>>;
  const std::string first = save(*trainer, 0), second = save(*trainer, 1);
  EXPECT_EQ(names_of(first), (Names{{2}, {1}}));
  EXPECT_EQ(names_of(second), (Names{{2}, {1}}));
  fs::remove_all(first);
  EXPECT_OK(Checkpoint::Open(second).value().Verify());

  // A resumed run shares them too, until they are other ones.
  const auto resumed = MakeTrainer(fixture_.model, PlanOver(1, "gpipe"), fixture_.Options());
  ASSERT_OK(resumed->Restore(second));
  EXPECT_EQ(names_of(save(*resumed, 2)), (Names{{2}, {1}}));
  const bool has_embedding = fixture_.lora.trains("embedding");
  const std::string name = has_embedding ? "layer 1: 1.weight" : "layer 0: tokens";
  std::vector<float> changed = resumed->Parameter(name).value();
  changed.front() += 1.0F;
  ASSERT_OK(resumed->SetParameter(name, changed));
  const std::string other = save(*resumed, 3);
  EXPECT_EQ(names_of(other), (Names{{1}, {1}}));
  const auto third = MakeTrainer(fixture_.model, PlanOver(1, "gpipe"), fixture_.Options());
  ASSERT_OK(third->Restore(other));
  EXPECT_EQ(third->Parameter(name).value(), changed);
  // One that is not what it was is not shared.
  for (const auto& file : fs::directory_iterator(other)) {
    if (absl::EndsWith(file.path().string(),
                       has_embedding ? "00001.frozen.safetensors" : "00000.frozen.safetensors")) {
      fs::resize_file(file.path(), 100);
    }
  }
  const std::string last = save(*third, 4);
  EXPECT_EQ(names_of(last), (Names{{1}, {1}}));
  EXPECT_OK(Checkpoint::Open(last).value().Verify());
}

TEST_P(Lora, ContinuesTextsAsPeftDoes) {
  const Transformer whole = ReadHuggingFaceConfigFile(fixture_.folder + "/base").value();
  const std::string text = absl::StrCat(ModelFileOf(whole), "\n", LoraTableOf(fixture_.lora));
  const Model model = ModelFor(whole, text);
  const auto trainer = Trainer::Create(PrepareRun(ModelForGeneration(model, 1).value(),
                                                  {.devices = 2, .predicts = true})
                                           .value(),
                                       {.draws_parameters = false})
                           .value();
  SetValues(*trainer, whole, fixture_.folder + "/base", fixture_.FolderOf("adapter_final"));
  ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
  const nlohmann::json& greedy = fixture_.expected["greedy"];
  std::vector<int32_t> ids = greedy["prompt"], continued;
  while (continued.size() < greedy["ids"].size()) {
    ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits, generator.Append(ids));
    ids = {static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
    continued.push_back(ids.front());
  }
  EXPECT_EQ(continued, greedy["ids"].get<std::vector<int32_t>>());
}

TEST_P(Lora, ExportsAdaptersAndTheMergedModel) {
  const TestFolder folder;
  const auto trainer = fixture_.Start(PlanOver(2, "1f1b"), fixture_.Options());
  SetValues(*trainer, fixture_.transformer, fixture_.folder + "/base",
            fixture_.FolderOf("adapter_final"));
  ASSERT_OK_AND_ASSIGN(const std::string saved, trainer->Save((folder.path() / "run").string(),
                                                              {.model_source = fixture_.text}));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));

  const std::string adapters = (folder.path() / "adapters").string();
  ASSERT_OK(ExportToPeft(checkpoint, "base", adapters));
  ASSERT_OK_AND_ASSIGN(const PeftFolder written, PeftFolder::Open(adapters, fixture_.transformer));
  ASSERT_OK_AND_ASSIGN(const PeftFolder original,
                       PeftFolder::Open(fixture_.FolderOf("adapter_final"), fixture_.transformer));
  LoraOptions options = written.lora();
  std::sort(options.targets.begin(), options.targets.end());
  EXPECT_EQ(options, original.lora());
  EXPECT_EQ(written.Fingerprint().value(), original.Fingerprint().value());
  EXPECT_THAT(ExportToPeft(checkpoint, "base", adapters),
              StatusIs(absl::StatusCode::kAlreadyExists, "adapter_config.json is there already"));

  const std::string merged = (folder.path() / "merged").string();
  ASSERT_OK(ExportToHuggingFace(checkpoint, merged));
  Transformer plain = fixture_.transformer;
  plain.quantization.reset();
  const Model model = ModelFor(plain, ModelFileOf(plain));
  const auto without =
      MakeTrainer(model, EvenPlan(model, 1, "gpipe", kLoraMicroBatches, 1), fixture_.Options());
  SetValues(*without, plain, merged, "");
  ExpectClose(LogitsOfFirst(*without, 1), Flat(fixture_.expected["merged_logits"]), "logits");
}

INSTANTIATE_TEST_SUITE_P(All, Lora,
                         ::testing::Values("lora/llama", "lora/qwen2", "lora/gpt2", "lora/opt",
                                           "lora/gpt_neox", "lora/phi3", "lora/gemma3",
                                           "lora/llama_whole", "lora/qwen2_whole",
                                           "lora/gpt2_norms", "quantized/llama_nf4",
                                           "quantized/qwen2_nf4", "quantized/llama_int8"),
                         [](const auto& test) {
                           return absl::StrReplaceAll(test.param, {{"/", "_"}});
                         });

// New adapters change nothing: B is 0. A is drawn, whether or not the model's parameters are.
TEST(LoraAdapters, BeginWithTheModelItself) {
  const LoraFixture fixture("lora/llama");
  const auto plan = EvenPlan(fixture.model, 2, "1f1b", kLoraMicroBatches, 1);
  const auto trainer = MakeTrainer(fixture.model, plan, fixture.Options());
  SetValues(*trainer, fixture.transformer, fixture.folder + "/base", "");
  const std::vector<float> a = trainer->Parameter("layer 1: 1.q_proj.lora_A").value();
  const float bound = 1.0F / std::sqrt(32.0F);
  const auto [least, most] = std::minmax_element(a.begin(), a.end());
  EXPECT_LT(*least, -0.8F * bound);
  EXPECT_GT(*most, 0.8F * bound);
  EXPECT_GE(*least, -bound);
  EXPECT_LE(*most, bound);
  EXPECT_THAT(trainer->Parameter("layer 1: 1.q_proj.lora_B").value(), ::testing::Each(0.0F));

  const Model plain = ModelFor(fixture.transformer, ModelFileOf(fixture.transformer));
  const auto without =
      MakeTrainer(plain, EvenPlan(plain, 1, "gpipe", kLoraMicroBatches, 1), fixture.Options());
  SetValues(*without, fixture.transformer, fixture.folder + "/base", "");
  EXPECT_EQ(trainer->Predict(*fixture.data).value(), without->Predict(*fixture.data).value());
}

// A network with an activation after its sums, which B is differently kept for.
std::string TwoLayers(const std::string& activation, const std::string& options = "") {
  return absl::StrCat("[[layer]]\ntype = \"linear\"\noutputs = 24\nactivation = \"", activation,
                      "\"\n[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n",
                      "[lora]\nrank = 3\nalpha = 4\n", options);
}

// The loss of the first batch changes along each adapter's gradient as the gradient says, which a
// step of plain gradient descent shows.
TEST(LoraAdapters, HaveTheGradientsOfTheLoss) {
  constexpr int64_t kLoraRows = 24;
  for (const char* activation : {"none", "relu", "gelu", "tanh"}) {
    SCOPED_TRACE(activation);
    const Model model = ParseModel(TwoLayers(activation), kSmallFeatures, kSmallClasses).value();
    const auto data = SmallData(kLoraRows);
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      const auto trainer = MakeTrainer(
          model, EvenPlan(model, 2, schedule, 4, kLoraRows / 4),
          {.optimizer = Optimizer::Sgd(0.0F), .learning_rate = LearningRate::Constant(1.0F)});
      std::vector<const ModelParameter*> adapters;
      for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
        if (parameter.is_adapter) adapters.push_back(&parameter);
      }
      ASSERT_EQ(adapters.size(), 4U);
      std::vector<std::vector<float>> at, gradients;
      for (const ModelParameter* const adapter : adapters) {
        std::vector<float> values(static_cast<size_t>(adapter->shape.elements()));
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = 0.3F * std::sin(static_cast<float>(i * i + 1));
        }
        ASSERT_OK(trainer->SetParameter(adapter->name, values));
        at.push_back(values);
      }
      ASSERT_OK(trainer->Step(*data, Rows(0, kLoraRows)));
      for (size_t k = 0; k < adapters.size(); ++k) {
        std::vector<float>& gradient =
            gradients.emplace_back(trainer->Parameter(adapters[k]->name).value());
        for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = at[k][i] - gradient[i];
      }
      for (size_t k = 0; k < adapters.size(); ++k) {
        double squares = 0.0;
        for (const float slope : gradients[k]) squares += double{slope} * slope;
        ASSERT_GT(squares, 1e-5) << adapters[k]->name;
        const double step = 1e-2 / std::sqrt(squares);
        const auto loss_at = [&](double distance) {
          for (size_t j = 0; j < adapters.size(); ++j) {
            std::vector<float> values = at[j];
            for (size_t i = 0; j == k && i < values.size(); ++i) {
              values[i] += static_cast<float>(distance * gradients[k][i]);
            }
            EXPECT_OK(trainer->SetParameter(adapters[j]->name, values));
          }
          return trainer->Evaluate(*data).value().loss;
        };
        const double slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
        EXPECT_NEAR(slope, squares, 0.02 * squares) << adapters[k]->name;
      }
    }
  }
}

// No gradient passes below the first adapter, in the profile and in the run, wherever that is cut.
TEST(LoraAdapters, HaveNothingToComputeBelowThem) {
  constexpr int64_t kLoraRows = 24;
  const Model model =
      ParseModel("[[layer]]\ntype = \"layer_norm\"\nrepeat = 2\n" + TwoLayers("relu"),
                 kSmallFeatures, kSmallClasses)
          .value();
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile, AnalyzeModel(model, {.micro_batch_rows = 6}));
  EXPECT_EQ(profile.layers[1].backward_input_ns + profile.layers[1].backward_weight_ns, 0.0);
  EXPECT_GT(profile.layers[2].backward_input_ns, 0.0);
  const auto data = SmallData(kLoraRows);
  std::vector<std::string> hashes;
  for (const auto& [devices, schedule] :
       {std::pair(1, "gpipe"), std::pair(2, "zb-h1"), std::pair(4, "1f1b")}) {
    const auto trainer =
        MakeTrainer(model, EvenPlan(model, devices, schedule, 4, kLoraRows / 4), {});
    for (int step = 0; step < 2; ++step) ASSERT_OK(trainer->Step(*data, Rows(0, kLoraRows)));
    hashes.push_back(trainer->ParametersHash().value());
    EXPECT_EQ(hashes.back(), hashes.front()) << schedule;
  }
}

// A layer that is trained as a whole moves the place where gradients end.
TEST(LoraAdapters, AreBesideLayersThatAreTrainedAsAWhole) {
  constexpr int64_t kLoraRows = 24;
  const Model model = ParseModel(
                          "[[layer]]\ntype = \"linear\"\noutputs = 16\n[[layer]]\ntype = "
                          "\"layer_norm\"\nrepeat = 2\n" +
                              TwoLayers("relu", "targets = [\"c_fc\"]\ntrain = [\"norms\"]\n"),
                          kSmallFeatures, kSmallClasses)
                          .value();
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile, AnalyzeModel(model, {.micro_batch_rows = 6}));
  EXPECT_EQ(profile.layers[0].backward_input_ns + profile.layers[0].backward_weight_ns, 0.0);
  EXPECT_GT(profile.layers[1].backward_weight_ns, 0.0);
  EXPECT_GT(profile.layers[2].backward_input_ns, 0.0);
  for (const ModelParameter& parameter : profile.parameters.all()) {
    const bool is_norm = parameter.layer == 1 || parameter.layer == 2;
    EXPECT_EQ(parameter.is_trained_base, is_norm) << parameter.name;
    EXPECT_EQ(parameter.update.is_frozen(), !IsTrained(parameter)) << parameter.name;
  }
  const auto data = SmallData(kLoraRows);
  std::vector<std::string> hashes;
  for (const auto& [devices, schedule] :
       {std::pair(1, "gpipe"), std::pair(2, "zb-h1"), std::pair(4, "1f1b")}) {
    const auto trainer =
        MakeTrainer(model, EvenPlan(model, devices, schedule, 4, kLoraRows / 4), {});
    const std::vector<float> gains = trainer->Parameter("layer 1: gamma").value();
    for (int step = 0; step < 2; ++step) ASSERT_OK(trainer->Step(*data, Rows(0, kLoraRows)));
    EXPECT_NE(trainer->Parameter("layer 1: gamma").value(), gains);
    hashes.push_back(trainer->ParametersHash().value());
    EXPECT_EQ(hashes.back(), hashes.front()) << schedule;
    const std::vector<DeviceReport> reports = trainer->Devices().value();
    for (const DeviceReport& device : reports) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
    }
  }
}

// Linear layers stay quantized; the embedding, the head and the norms never are.
TEST(LoraAdapters, OfQuantizedModelsAreBesideLayersThatAreTrainedAsAWhole) {
  LoraFixture fixture("quantized/llama_nf4");
  fixture.lora.trained = {"embedding", "head", "norms"};
  fixture.model = ModelFor(fixture.transformer, absl::StrCat(ModelFileOf(fixture.transformer), "\n",
                                                             LoraTableOf(fixture.lora)));
  std::vector<std::string> hashes;
  for (const int devices : {1, 3}) {
    const auto trainer =
        MakeTrainer(fixture.model, EvenPlan(fixture.model, devices, "1f1b", kLoraMicroBatches, 1),
                    fixture.Options());
    SetValues(*trainer, fixture.transformer, fixture.folder + "/base", "");
    const std::vector<double> losses = Train(*trainer, fixture, 0, 3);
    EXPECT_LT(losses.back(), losses.front());
    hashes.push_back(trainer->ParametersHash().value());
    EXPECT_EQ(hashes.back(), hashes.front());
    for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
      EXPECT_EQ(IsTrained(parameter), !parameter.quantized.has_value()) << parameter.name;
    }
  }
}

TEST(LoraAdapters, AreNeededToTrainAFrozenModel) {
  Model model = SmallModel();
  model.is_frozen = true;
  const partition::Plan plan = EvenPlan(model, 2, "1f1b", 4, 2);
  EXPECT_THAT(Trainer::Create(model, plan, TrainerOptions{}),
              StatusIs(absl::StatusCode::kInvalidArgument, "no layer has adapters"));
}

// Dropout is that of what adapters take, in training alone, and the same wherever the model is cut.
TEST(LoraAdapters, DropInTrainingAlone) {
  constexpr int64_t kLoraRows = 24;
  const auto data = SmallData(kLoraRows);
  const auto run = [&](const std::string& options, int devices, const char* schedule) {
    const Model model =
        ParseModel(TwoLayers("gelu", options), kSmallFeatures, kSmallClasses).value();
    const auto trainer =
        MakeTrainer(model, EvenPlan(model, devices, schedule, 4, kLoraRows / 4), {});
    std::vector<double> losses = {trainer->Evaluate(*data).value().loss};
    for (int step = 0; step < 3; ++step) {
      losses.push_back(trainer->Step(*data, Rows(0, kLoraRows)).value().loss);
    }
    return losses;
  };
  const std::string drops = "dropout = 0.5\n";
  const std::vector<double> expected = run(drops, 1, "gpipe"), without = run("", 1, "gpipe");
  EXPECT_EQ(run(drops, 2, "1f1b"), expected);
  EXPECT_EQ(run(drops, 2, "zb-h1"), expected);
  EXPECT_EQ(expected[0], without[0]);
  EXPECT_EQ(expected[1], without[1]);  // B is still 0
  EXPECT_NE(expected[2], without[2]);
}

}  // namespace
}  // namespace stagecoach::engine
