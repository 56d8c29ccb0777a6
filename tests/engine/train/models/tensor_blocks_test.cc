#include "engine/nn/layers/composite/tensor_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/tokens/tokens.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/nn/layers/linear.h"
#include "engine/runtime/stage/profile.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/analytic.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using kernels::Precision;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;

constexpr int kBlockMicroBatches = 4;
constexpr int64_t kCutContext = 12;
constexpr int64_t kCutVocabulary = 20;

Transformer CutNamed(const std::string& name) { return NamedTransformer(name).value(); }

// Small ones with everything that is cut: biases and GELU, or shared keys and values and SwiGLU.
Transformer CutGpt2() {
  Transformer model = CutNamed("gpt2:blocks=2,width=32,heads=8,context=12");
  model.vocabulary = kCutVocabulary;
  model.positions = 0;
  model.end_of_text.clear();
  model.begin_of_text.reset();
  return model;
}
Transformer CutLlama() {
  return CutNamed(
      "llama:blocks=2,width=32,heads=8,kv_heads=4,hidden=24,context=12,vocabulary=20,qkv_bias=1");
}

// Norms of queries and keys, whose gains all heads share; with windows, and norms of what is added
// up.
Transformer CutQwen3() {
  return CutNamed(
      "llama:blocks=2,width=32,heads=8,kv_heads=4,hidden=24,context=12,vocabulary=20,qk_norm=1");
}
Transformer CutGemma3() {
  return CutNamed(
      "gemma:blocks=2,width=32,heads=8,kv_heads=4,head_size=8,hidden=24,context=12,vocabulary=20,"
      "window=5,global_every=2,logit_cap=4");
}

Model CutModelOf(const Transformer& transformer, int blocks, int64_t vocabulary = kCutVocabulary) {
  const std::string table = blocks > 1 ? absl::StrCat("\n", TensorTableOf(blocks)) : "";
  return ParseModel(
             absl::StrCat(ModelFileOf(transformer), table),
             {.input = Shape{transformer.context}, .vocabulary = vocabulary, .classes = vocabulary})
      .value();
}

std::shared_ptr<const Dataset> CutData() {
  std::vector<int32_t> ids;
  for (int i = 0; i < 8 * kCutContext + 1; ++i) ids.push_back(i * i % 17 + i % 3);
  return TokenDataset::Create(TokenIds::Of(ids).value(), kCutContext, kCutVocabulary).value();
}

struct PartsCase {
  std::string name;
  int parts = 1;
  int stages = 1;
  std::string schedule = "1f1b";
  partition::Replication replication = {1, 2};
  bool recomputes = false;
};

std::vector<PartsCase> PartsCases() {
  return {{"two", 2},
          {"four", 4},
          {"one over two stages", 1, 2},
          {"two over two stages", 2, 2, "zb-h1"},
          {"four, interleaved", 4, 2, "interleaved"},
          {"two, two replicas", 2, 1, "1f1b", {2, 2}},
          {"two, two replicas that share the optimizer", 2, 2, "1f1b", {2, 2, true}},
          {"four, recomputed", 4, 2, "1f1b", {1, 2}, true}};
}

partition::Plan PlanOfParts(const Model& model, const PartsCase& parts) {
  partition::Plan plan =
      EvenPlan(model, parts.stages, parts.schedule, kBlockMicroBatches, 2, 0, parts.replication);
  plan.tensor_parts = parts.parts;
  if (parts.recomputes) plan.recomputed = {1, 2, 3, 4};
  return plan;
}

TrainerOptions PartsOptionsOf(Precision precision, float clip_norm) {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = clip_norm;
  return {.optimizer = optimizer,
          .learning_rate = LearningRate::Constant(0.01F),
          .device = {.precision = precision}};
}

// Returns the fingerprint after some steps, and their losses.
std::string TrainParts(Trainer& trainer, int steps) {
  const std::shared_ptr<const Dataset> data = CutData();
  std::string trace;
  for (int step = 0; step < steps; ++step) {
    const absl::StatusOr<StepResult> taken = trainer.Step(*data, Rows(0, 8));
    if (!taken.ok()) return taken.status().ToString();
    absl::StrAppend(&trace, taken->loss, " ", taken->gradient_norm, "; ");
  }
  return absl::StrCat(trace, trainer.ParametersHash().value());
}

class TensorBlocksTest : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    const absl::Status has = stagecoach::testing::HasOnCpu(GetParam());
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
};

TEST_P(TensorBlocksTest, HaveTheSameBitsOnAnyNumberOfDevices) {
  for (const Transformer& transformer : {CutGpt2(), CutLlama(), CutQwen3(), CutGemma3()}) {
    const Model model = CutModelOf(transformer, 4);
    for (const float clip_norm : {0.0F, 0.5F}) {
      const TrainerOptions options = PartsOptionsOf(GetParam(), clip_norm);
      const std::string expected =
          TrainParts(*MakeTrainer(model, PlanOfParts(model, {.name = "one"}), options), 3);
      for (const PartsCase& parts : PartsCases()) {
        SCOPED_TRACE(absl::StrCat(parts.name, ", clipping ", clip_norm));
        EXPECT_EQ(TrainParts(*MakeTrainer(model, PlanOfParts(model, parts), options), 3), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, TensorBlocksTest,
                         ::testing::Values(Precision::kFloat32, Precision::kBfloat16),
                         [](const auto& one) { return kernels::PrecisionName(one.param); });

std::vector<std::string> ParameterNamesOf(const Model& model) {
  std::vector<std::string> names;
  const auto profile = AnalyzeModel(model, {.micro_batch_rows = 2}).value();
  for (const ModelParameter& parameter : profile.parameters.all()) names.push_back(parameter.name);
  return names;
}

double LargestDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

// Blocks add in another order: only roundings differ.
TEST(TensorBlocks, ComputeWhatTheWholeDoes) {
  for (const Transformer& transformer : {CutGpt2(), CutLlama(), CutQwen3(), CutGemma3()}) {
    const Model whole = CutModelOf(transformer, 1), cut = CutModelOf(transformer, 4);
    ASSERT_EQ(ParameterNamesOf(cut), ParameterNamesOf(whole));
    TrainerOptions options = PartsOptionsOf(Precision::kFloat32, 0.0F);
    options.optimizer = Optimizer::Sgd(0.0F);
    options.learning_rate = LearningRate::Constant(0.5F);
    const auto of_whole = MakeTrainer(whole, PlanOfParts(whole, {.name = "whole"}), options);
    const auto of_cut = MakeTrainer(cut, PlanOfParts(cut, {.name = "cut", .parts = 2}), options);
    for (const std::string& name : ParameterNamesOf(whole)) {
      EXPECT_EQ(of_cut->Parameter(name).value(), of_whole->Parameter(name).value()) << name;
    }
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK_AND_ASSIGN(const StepResult expected, of_whole->Step(*CutData(), Rows(0, 8)));
      ASSERT_OK_AND_ASSIGN(const StepResult taken, of_cut->Step(*CutData(), Rows(0, 8)));
      EXPECT_NEAR(taken.loss, expected.loss, 1e-5 * expected.loss);
    }
    for (const std::string& name : ParameterNamesOf(whole)) {
      const std::vector<float> expected = of_whole->Parameter(name).value();
      EXPECT_LE(LargestDistance(of_cut->Parameter(name).value(), expected), 1e-5) << name;
    }
  }
}

TEST(TensorBlocks, AreSavedWhole) {
  for (const Transformer& transformer : {CutGpt2(), CutQwen3()}) {
    const Model model = CutModelOf(transformer, 4);
    const TrainerOptions options = PartsOptionsOf(Precision::kFloat32, 0.0F);
    for (const bool shards : {false, true}) {
      const TestFolder folder;
      const PartsCase on_four = {
          .name = "four", .parts = 4, .replication = {shards ? 2 : 1, 2, shards}};
      const auto saving = MakeTrainer(model, PlanOfParts(model, on_four), options);
      TrainParts(*saving, 2);
      ASSERT_OK_AND_ASSIGN(const std::string path, saving->Save(folder.path().string()));
      const std::string expected = TrainParts(*saving, 2);
      for (const PartsCase& parts : PartsCases()) {
        SCOPED_TRACE(parts.name);
        const auto resumed = MakeTrainer(model, PlanOfParts(model, parts), options);
        ASSERT_OK(resumed->Restore(path));
        EXPECT_EQ(TrainParts(*resumed, 2), expected);
      }
      // Another number of blocks reads it, too.
      const Model whole = CutModelOf(transformer, 1);
      const auto uncut = MakeTrainer(whole, PlanOfParts(whole, {.name = "whole"}), options);
      ASSERT_OK(uncut->Restore(path));
      const auto again =
          MakeTrainer(model, PlanOfParts(model, {.name = "two", .parts = 2}), options);
      ASSERT_OK(again->Restore(path));
      for (const std::string& name : ParameterNamesOf(whole)) {
        EXPECT_EQ(uncut->Parameter(name).value(), again->Parameter(name).value()) << name;
      }
    }
  }
}

// Sources of values, such as folders of Hugging Face's, know nothing of blocks.
TEST(TensorBlocks, TakeValuesInTheOrderOfTheWhole) {
  const auto value_at = [](const std::string& name, int64_t i) {
    return static_cast<float>(name.size()) + 0.125F * static_cast<float>(i % 1021);
  };
  for (const Transformer& transformer : {CutLlama(), CutQwen3()}) {
    const Model model = CutModelOf(transformer, 4);
    for (const PartsCase& parts : PartsCases()) {
      SCOPED_TRACE(parts.name);
      const auto trainer =
          MakeTrainer(model, PlanOfParts(model, parts), PartsOptionsOf(Precision::kFloat32, 0.0F));
      const auto set = [&](const ModelParameter& parameter, const kernels::Tensor& values) {
        EXPECT_EQ(values.elements(), parameter.shape.elements());
        for (int64_t i = 0; i < values.elements(); ++i) {
          values.f32()[i] = value_at(parameter.name, i);
        }
        return absl::OkStatus();
      };
      ASSERT_OK(trainer->SetParameters(set));
      for (const std::string& name : ParameterNamesOf(model)) {
        const std::vector<float> all = trainer->Parameter(name).value();
        std::vector<float> expected;
        for (int64_t i = 0; i < std::ssize(all); ++i) expected.push_back(value_at(name, i));
        EXPECT_EQ(all, expected) << name;
        std::reverse(expected.begin(), expected.end());
        ASSERT_OK(trainer->SetParameter(name, expected));
        EXPECT_EQ(trainer->Parameter(name).value(), expected) << name;
      }
    }
  }
}

// Also where the first layers are frozen, of which no gradients are exchanged, and where some
// parameters of a layer are.
TEST(TensorBlocks, TakeAndSendWhatWasPredicted) {
  for (const PartsCase& parts : PartsCases()) {
    for (const char* const frozen : {"", "layer [0-2]: *", "layer [0-5]: *", "*gamma", "*weight"}) {
      for (const Transformer& transformer : {CutLlama(), CutQwen3()}) {
        SCOPED_TRACE(absl::StrCat(parts.name, ", frozen: ", frozen));
        Model model = CutModelOf(transformer, 4);
        if (*frozen != '\0') model.parameter_rules = {{.pattern = frozen, .is_frozen = true}};
        const auto trainer = MakeTrainer(model, PlanOfParts(model, parts),
                                         PartsOptionsOf(Precision::kFloat32, 1.0F));
        TrainParts(*trainer, 2);
        ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
        EXPECT_EQ(std::ssize(devices), parts.parts * parts.stages * parts.replication.replicas);
        for (const DeviceReport& device : devices) {
          EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
          EXPECT_EQ(device.measured_sent, device.predicted_sent) << device.device;
          EXPECT_EQ(device.measured_sent.to_parts > 0, parts.parts > 1) << device.device;
        }
      }
    }
  }
}

// The devices add up the gradients of what they all have within W, unless it is frozen.
TEST(TensorBlocks, ExchangeTheGradientsOfGainsThatAreTrained) {
  const auto exchange_of = [](const Transformer& transformer, const char* frozen) {
    Model model = CutModelOf(transformer, 4);
    if (*frozen != '\0') model.parameter_rules = {{.pattern = frozen, .is_frozen = true}};
    return AnalyzeModel(model, {.micro_batch_rows = 2, .tensor_parts = 2})
        .value()
        .layers[1]
        .weight_exchange;
  };
  // Two gains of 4 numbers take 64 bytes each, too few for a device to add up half of them.
  EXPECT_EQ(exchange_of(CutQwen3(), ""), (partition::PartExchange{.bytes = 128, .rounds = 2}));
  EXPECT_EQ(exchange_of(CutQwen3(), "layer [0-2]: *"), partition::PartExchange());
  EXPECT_EQ(exchange_of(CutLlama(), ""), partition::PartExchange());
}

// All devices then have all of an embedding and a head.
TEST(TensorBlocks, LeaveAVocabularyWholeThatTheyDoNotDivide) {
  for (const int64_t vocabulary : {int64_t{20}, int64_t{21}}) {
    Transformer transformer = CutGpt2();
    transformer.vocabulary = vocabulary;
    const Model model = CutModelOf(transformer, 4, vocabulary);
    const auto profile = AnalyzeModel(model, {.micro_batch_rows = 2, .tensor_parts = 2}).value();
    int cut = 0;
    for (const ModelParameter& parameter : profile.parameters.all()) {
      if (parameter.shape == Shape{vocabulary, 32}) cut += parameter.blocks.has_value() ? 1 : 0;
    }
    EXPECT_EQ(cut, vocabulary == 20 ? 2 : 0);
    EXPECT_EQ(profile.layers.back().backward_exchange.rounds, vocabulary == 20 ? 1 : 0);
    EXPECT_EQ(profile.layers.front().forward_exchange.rounds, vocabulary == 20 ? 2 : 0);
  }
}

// Two devices send two messages one after the other for a sum, each of which takes time to start,
// and what remains of the layer takes half of the time at best.
TEST(TensorBlocks, TakeTimeToBeAddedUp) {
  const Model model = CutModelOf(CutLlama(), 4);
  const auto forward_ns = [&](int parts) {
    const auto profile =
        AnalyzeModel(model, {.micro_batch_rows = 2, .tensor_parts = parts}).value();
    return profile.layers[1].forward_ns;
  };
  EXPECT_GT(forward_ns(2), 0.5 * forward_ns(1) + 2.0 * partition::DeviceSpeed().overhead_ns);
}

// Each of four devices holds a fourth of what is cut.
TEST(TensorBlocks, DivideTheMemoryOfLayers) {
  Transformer wide = CutLlama();
  wide.hidden = 4096;
  const Model model = CutModelOf(wide, 4);
  const auto peak = [&](int parts) {
    const auto trainer = MakeTrainer(model, PlanOfParts(model, {.name = "wide", .parts = parts}),
                                     PartsOptionsOf(Precision::kFloat32, 0.0F));
    return trainer->Devices().value().front().predicted_peak_bytes;
  };
  EXPECT_LT(peak(4), 0.3 * static_cast<double>(peak(1)));
}

TEST(TensorBlocks, RefuseBlocksOfDifferentSizes) {
  const auto block = [](int64_t hidden, bool has_bias) -> std::vector<LayerFactory> {
    return {Linear(hidden), Linear({.outputs = 4, .has_bias = has_bias})};
  };
  const auto analyzed = [&](int64_t hidden) {
    return AnalyzeModel(
        {.input = Shape{4}, .layers = {TensorBlocks({block(8, true), block(hidden, false)}, {1})}},
        {});
  };
  EXPECT_OK(analyzed(8));
  EXPECT_THAT(analyzed(12), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("the first block has no \"0.weight\" of [4, 12]")));
}

TEST(TensorBlocks, RefuseAdaptersOfWhatTheyShare) {
  const LinearOptions adapted = {.outputs = 8, .adapters = {{.name = "a", .outputs = 8}}};
  const std::vector<LayerFactory> block = {Linear(8), Linear(adapted), Linear(4)};
  EXPECT_THAT(
      AnalyzeModel(
          {.input = Shape{4}, .layers = {TensorBlocks({block, block}, {1})}, .is_frozen = true},
          {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"1.a.lora_A\" cannot be cut")));
}

TEST(TensorBlocks, RefuseWhatCannotBeCut) {
  struct Refused {
    std::string model;
    int blocks;
    std::string why;
  };
  const std::string head = "\n[[layer]]\ntype = \"head\"\n";
  for (const Refused& refused : std::vector<Refused>{
           {ModelFileOf(CutLlama()), 8, "4 heads of keys and values cannot be cut into 8"},
           {ModelFileOf(CutGpt2()), 16, "8 heads cannot be cut into 16 equal blocks"},
           {ModelFileOf(CutGpt2()), 3, "is 3, expected a power of two"},
           {"[[layer]]\ntype = \"residual\"\nlayers = [{ type = \"attention\", heads = 4 }]\n", 2,
            "attention can be cut into blocks between two linear layers alone"},
           {"[[layer]]\ntype = \"residual\"\nlayers = [{ type = \"linear\", outputs = 48 }, "
            "{ type = \"head_norm\", heads = 8 }, "
            "{ type = \"attention\", heads = 16, kv_heads = 4 }, "
            "{ type = \"linear\", outputs = 8 }]\n",
            2, "head_norm has other heads than attention"},
           {"[[layer]]\ntype = \"embedding\"\nvocabulary = \"classes\"\nfeatures = 8\n" + head, 2,
            "no layer can be cut into blocks"}}) {
    const std::string text = absl::StrCat(refused.model, "\n", TensorTableOf(refused.blocks));
    EXPECT_THAT(ParseModel(text, {.input = Shape{kCutContext},
                                  .vocabulary = kCutVocabulary,
                                  .classes = kCutVocabulary}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(refused.why)));
  }
  const Model model = CutModelOf(CutGpt2(), 2);
  EXPECT_THAT(Trainer::Create(model, PlanOfParts(model, {.name = "four", .parts = 4}),
                              PartsOptionsOf(Precision::kFloat32, 0.0F)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("4 devices cannot share 2 blocks equally")));
}

}  // namespace
}  // namespace stagecoach::engine
