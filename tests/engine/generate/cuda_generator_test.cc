// Sequences that are continued on GPUs.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/system/file.h"
#include "engine/generate/generator.h"
#include "engine/generate/token_choice.h"
#include "engine/models/model_file.h"
#include "engine/models/presets.h"
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

// There are more positions than attention with a cache processes as one part.
constexpr int64_t kContext = 70, kVocabulary = 11;
constexpr size_t kPrompt = 7;

struct GeneratingModel {
  const char* label;
  const char* name;
  const char* tables = "";
};
// One model has position vectors; two have rotary positions and heads that share keys, and their
// head shares its weight with the embedding; the weights of some of these are quantized, and of
// some of these multiplied as they are stored; of the heads of another, a part is rotated; two have
// a window and caps.
constexpr char kLlama[] =
    "llama:blocks=1,width=16,heads=4,kv_heads=2,hidden=24,context=70,vocabulary=11,"
    "rotary_base=100,tied=1";
constexpr char kWideLlama[] =
    "llama:blocks=1,width=64,heads=4,kv_heads=2,hidden=64,context=70,vocabulary=11,"
    "rotary_base=100,tied=1";
constexpr GeneratingModel kModels[] = {
    {"gpt2", "gpt2:blocks=1,width=16,heads=2,context=70,vocabulary=11"},
    {"llama", kLlama},
    {"quantized", kLlama, "\n[quantization]\ntype = \"nf4\"\n"},
    {"quantized_nf4", kWideLlama, "\n[quantization]\ntype = \"nf4\"\n"},
    {"quantized_int8", kWideLlama, "\n[quantization]\ntype = \"int8\"\n"},
    {"gpt_neox",
     "gpt_neox:blocks=1,width=16,heads=2,context=70,vocabulary=11,rotary_base=100,rotary_size=4"},
    {"gemma2",
     "gemma:blocks=1,width=16,heads=4,kv_heads=2,head_size=8,hidden=24,context=70,vocabulary=11,"
     "window=9,qk_norm=0,score_cap=2,logit_cap=4,rotary_base=100,tied=0"},
    {"gemma3",
     "gemma:blocks=1,width=16,heads=4,kv_heads=2,head_size=8,hidden=24,context=70,vocabulary=11,"
     "window=9,query_scalar=5,rotary_base=100,tied=0"}};

Model SequenceModel(const GeneratingModel& model) {
  return ParseModel(ModelFileNamed(model.name).value() + model.tables,
                    {.input = Shape{kContext}, .vocabulary = kVocabulary, .classes = kVocabulary})
      .value();
}

struct Text {
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> logits;  // from which each token was chosen
};

// Continues a prompt to the end of the context, choosing the largest logits.
Text Continue(Trainer& trainer) {
  Generator generator = Generator::Create(trainer).value();
  std::vector<int32_t> next;
  for (size_t i = 0; i < kPrompt; ++i) next.push_back(static_cast<int32_t>(i * i % kVocabulary));
  Text text;
  while (true) {
    const absl::Span<const float> logits = generator.Append(next).value();
    text.logits.emplace_back(logits.begin(), logits.end());
    text.ids.push_back(ChooseToken(logits, {.temperature = 0.0}, generator.position()).value());
    if (generator.position() == generator.context()) return text;
    next = {text.ids.back()};
  }
}

// Returns the same text from Continue.
std::vector<int32_t> Continued(Trainer& trainer) {
  Generator generator = Generator::Create(trainer).value();
  std::vector<int32_t> prompt, given;
  for (size_t i = 0; i < kPrompt; ++i) prompt.push_back(static_cast<int32_t>(i * i % kVocabulary));
  const auto take = [&](int32_t id) {
    given.push_back(id);
    return given.size() != 9;
  };
  // The prompt comes in two parts, so what is computed after the first is unused.
  EXPECT_OK(generator.Continue(prompt, kContext, take));
  EXPECT_EQ(generator.position(), kPrompt + 8);
  EXPECT_OK(generator.Continue({given.back()}, kContext, take));
  EXPECT_EQ(generator.position(), kContext);
  return given;
}

class CudaGenerator : public ::testing::TestWithParam<GeneratingModel> {
 protected:
  static std::unique_ptr<Trainer> TrainerOn(PlanOptions plan) {
    plan.predicts = true;
    return Trainer::Create(
               PrepareRun(ModelForGeneration(SequenceModel(GetParam())).value(), plan).value(),
               {.device = plan.device, .exchange = plan.exchange})
        .value();
  }
};

DeviceSpec Cuda(Precision precision = Precision::kFloat32) {
  return {.kind = DeviceKind::kCuda, .precision = precision};
}

double Largest(const std::vector<float>& values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max<double>(largest, std::fabs(value));
  return largest;
}

// The bounds are those of generator_test.cc.
void ExpectClose(const Text& actual, const Text& expected, double bound) {
  for (size_t t = 0; t < actual.logits.size(); ++t) {
    for (size_t i = 0; i < kVocabulary; ++i) {
      ASSERT_NEAR(actual.logits[t][i], expected.logits[t][i], bound * Largest(expected.logits[t]))
          << "position " << t << ", id " << i;
    }
    // Once the ids differ, the texts diverge.
    if (actual.ids[t] != expected.ids[t]) return;
  }
}

TEST_P(CudaGenerator, GivesTheTextOfTheCpu) {
  if (NumGpus() < 1) GTEST_SKIP() << "needs a GPU";
  const Text cpu = Continue(*TrainerOn({}));
  const Text cuda = Continue(*TrainerOn({.device = Cuda()}));
  ExpectClose(cuda, cpu, 2e-5);
  EXPECT_EQ(cuda.ids, cpu.ids);
  const auto in_bfloat16 = TrainerOn({.device = Cuda(Precision::kBfloat16)});
  const Text rounded = Continue(*in_bfloat16);
  EXPECT_EQ(Continued(*in_bfloat16), rounded.ids);
  ExpectClose(rounded, cpu, 28 * testing::PrecisionOf(kernels::DType::kBfloat16).unit_roundoff);
  // Several positions of a prompt may pass at a time.
  const auto by_three = TrainerOn({.micro_batch_rows = 3, .device = Cuda()});
  const Text together = Continue(*by_three);
  ExpectClose(together, cpu, 2e-5);
  EXPECT_EQ(together.ids, cpu.ids);
  EXPECT_EQ(Continued(*by_three), cpu.ids);
}

TEST_P(CudaGenerator, GivesTheSameBitsOnAnyStagesInThePredictedMemory) {
  const int gpus = NumGpus();
  if (gpus < 1) GTEST_SKIP() << "needs a GPU";
  const auto on_one = TrainerOn({.device = Cuda()});
  const auto [ids, expected] = Continue(*on_one);
  EXPECT_EQ(Continued(*on_one), ids);
  for (const bool share : {true, false}) {
    if (!share && gpus < 2) continue;
    PlanOptions plan = {.devices = 2, .device = Cuda()};
    if (share) plan.device.gpus = {0, 0};
    const std::unique_ptr<Trainer> trainer = TrainerOn(plan);
    EXPECT_EQ(Continue(*trainer).logits, expected);
    EXPECT_EQ(Continued(*trainer), ids);
    const std::vector<DeviceReport> devices = trainer->Devices().value();
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
      EXPECT_GT(device.graph_issues, 0);
      EXPECT_EQ(device.plain_issues, 0) << device.why_plain;
    }
  }
}

// With the kernels for few rows, also where the library was measured to be faster. They compute the
// norms before products, and the sums after them.
class FewRowsCudaGenerator : public CudaGenerator {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }

  // Makes the choices of a run, changes those for few rows, and returns the file's text.
  std::string ChooseFewRows() {
    TrainerOn({.device = InBfloat16()});
    std::string text = TuningText();
    const int choices = absl::StrReplaceAll({{"\"blocks\": 0", "\"blocks\": 1"},
                                             {"\"columns\": 0", "\"columns\": 32"},
                                             {"\"warps\": 0", "\"warps\": 24"}},
                                            &text);
    EXPECT_GT(choices, 0);
    EXPECT_OK(base::WriteFileAtomically(file_, text));
    return text;
  }
  std::string TuningText() const { return base::ReadFile(file_, 1 << 20).value(); }

  DeviceSpec InBfloat16() const {
    DeviceSpec device = Cuda(Precision::kBfloat16);
    device.tuning_file = file_;
    return device;
  }

 private:
  const std::string file_ = absl::StrCat(::testing::TempDir(), "/generate_", getpid(), ".json");
};

TEST_P(FewRowsCudaGenerator, GivesTheSameBitsOnAnyStages) {
  if (NumGpus() < 1) GTEST_SKIP() << "needs a GPU";
  const std::string choices = ChooseFewRows();
  const auto on_one = TrainerOn({.device = InBfloat16()});
  EXPECT_EQ(TuningText(), choices);
  const Text text = Continue(*on_one);
  EXPECT_EQ(Continued(*on_one), text.ids);
  ExpectClose(text, Continue(*TrainerOn({})),
              28 * testing::PrecisionOf(kernels::DType::kBfloat16).unit_roundoff);
  PlanOptions plan = {.devices = 2, .device = InBfloat16()};
  plan.device.gpus = {0, 0};
  const auto on_two = TrainerOn(plan);
  EXPECT_EQ(Continue(*on_two).logits, text.logits);
  const std::vector<DeviceReport> devices = on_two->Devices().value();
  for (const DeviceReport& device : devices) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
  }
}

// Those that multiply weights as they are stored: up to 16 positions at a time.
using QuantizedCudaGenerator = CudaGenerator;

TEST_P(QuantizedCudaGenerator, HasRoomForExpandedWeightsIfManyPositionsPassTogether) {
  if (NumGpus() < 1) GTEST_SKIP() << "needs a GPU";
  const auto peak_bytes = [](int64_t positions) {
    const auto trainer = TrainerOn({.micro_batch_rows = positions, .device = Cuda()});
    return trainer->Devices().value().front().predicted_peak_bytes;
  };
  constexpr int64_t kLargest = 64 * 128 * 4;  // of gate and up
  EXPECT_GT(peak_bytes(17) - peak_bytes(16), kLargest);
  EXPECT_LT(peak_bytes(16) - peak_bytes(15), kLargest / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, FewRowsCudaGenerator,
                         ::testing::Values(kModels[0], kModels[1], kModels[5], kModels[6]),
                         [](const auto& test) { return test.param.label; });

INSTANTIATE_TEST_SUITE_P(Models, QuantizedCudaGenerator, ::testing::Values(kModels[3], kModels[4]),
                         [](const auto& test) { return test.param.label; });

INSTANTIATE_TEST_SUITE_P(Models, CudaGenerator, ::testing::ValuesIn(kModels),
                         [](const auto& test) { return test.param.label; });

}  // namespace
}  // namespace stagecoach::engine
