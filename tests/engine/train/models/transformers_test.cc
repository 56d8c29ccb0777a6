// Transformers compared with what PyTorch computed in float64 with the models of the library
// transformers (tests/fixtures/transformers/make.py): logits, loss, gradients and three steps of
// AdamW.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/system/file.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/data/tokens/tokens.h"
#include "engine/models/hugging_face.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/adamw_steps.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;

constexpr int64_t kFixtureRows = 4;
constexpr float kFixtureRate = 1e-3F;
// Returns the tolerance relative to the largest value of a tensor: in fp32 what exactness requires;
// in bf16 the probable effect of the roundings on the longest path to a gradient. Each way through
// two blocks of two layers, these are 6 results with their weights per layer, and at both ends
// embeddings, a norm and a head. Gemma has 2 more in each layer, a norm behind it, and 3 more of a
// scale and a cap.
double ToleranceOf(const std::string& fixture, Precision precision) {
  if (precision == Precision::kFloat32) return 1e-5;
  const bool is_gemma = fixture.starts_with("gemma");
  return stagecoach::testing::ProbableErrorOfBfloat16(2 * (is_gemma ? 4 * 8 + 7 : 4 * 6 + 4));
}

std::string Fixture(const std::string& name) {
  return absl::StrCat(STAGECOACH_TEST_FIXTURES, "/transformers/", name);
}

// A file of tensors, small enough to be read whole.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path)
      : bytes_(base::ReadFile(path, 1 << 24).value()),
        header_(ParseSafetensors(bytes_, static_cast<int64_t>(bytes_.size())).value()) {}

  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    for (const SafetensorsEntry& entry : header_.tensors) {
      if (entry.name != name) continue;
      std::vector<T> values(static_cast<size_t>(entry.shape.elements()));
      EXPECT_EQ(entry.bytes(), static_cast<int64_t>(values.size() * sizeof(T))) << name;
      std::memcpy(values.data(), bytes_.data() + entry.begin, values.size() * sizeof(T));
      return values;
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : header_.tensors) names.push_back(entry.name);
    return names;
  }

 private:
  std::string bytes_;
  SafetensorsHeader header_;
};

void ExpectClose(absl::Span<const float> ours, absl::Span<const float> theirs, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  double largest = 0.0, error = 0.0;
  for (size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(theirs[i])));
    error =
        std::max(error, std::fabs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i])));
  }
  EXPECT_GT(largest, 0.0) << what;
  EXPECT_LE(error, tolerance * largest) << what;
}

struct FixtureRun {
  Transformer transformer;
  Model model;
  TrainerOptions options;
  std::unique_ptr<Trainer> trainer;
  std::shared_ptr<const TokenDataset> data;
};

// Runs with the parameters of the fixture, one sample per micro-batch.
FixtureRun RunOf(const std::string& fixture, int devices, const std::string& schedule,
                 const Optimizer& optimizer, float rate, Precision precision) {
  FixtureRun run;
  run.transformer = ReadHuggingFaceConfigFile(Fixture(fixture)).value();
  const TensorFile expected(Fixture(fixture) + "/expected.safetensors");
  const std::vector<int32_t> ids = expected.Values<int32_t>("ids");
  // Of one model, the texts are longer than what its positions are made for.
  run.transformer.context = (std::ssize(ids) - 1) / kFixtureRows;
  EXPECT_LE(run.transformer.context, run.transformer.longest_context());
  const Transformer& transformer = run.transformer;
  run.model = ParseModel(ModelFileOf(transformer), {.input = Shape{transformer.context},
                                                    .vocabulary = transformer.vocabulary,
                                                    .classes = transformer.vocabulary})
                  .value();
  run.options = {.optimizer = optimizer,
                 .learning_rate = LearningRate::Constant(rate),
                 .device = {.precision = precision}};
  run.trainer =
      MakeTrainer(run.model, EvenPlan(run.model, devices, schedule, kFixtureRows, 1), run.options);
  const HuggingFaceFolder folder = HuggingFaceFolder::Open(Fixture(fixture), transformer).value();
  EXPECT_OK(run.trainer->SetParameters(std::bind_front(&HuggingFaceFolder::Read, folder)));
  run.data =
      TokenDataset::Create(TokenIds::Of(ids).value(), transformer.context, transformer.vocabulary)
          .value();
  return run;
}

// Returns one of their tensors in our layout: the values of all pieces of the parameter.
std::vector<float> InOurOrder(const HuggingFaceParameter& parameter, const TensorFile& file,
                              const std::string& prefix, const Transformer& model) {
  const bool is_gradient = prefix == "gradient.";
  const int64_t columns = parameter.columns();
  std::vector<float> values(static_cast<size_t>(parameter.pieces.front().rows() * columns));
  int64_t first = 0;
  for (const HuggingFacePiece& piece : parameter.pieces) {
    const std::vector<float> theirs =
        file.Values<float>(absl::StrCat(prefix, HuggingFaceTensorName(model, piece.tensor)));
    for (int64_t r = 0; r < piece.rows(); ++r) {
      for (int64_t c = 0; c < piece.columns(); ++c) {
        const int64_t at = piece.is_transposed ? c * piece.rows() + r
                                               : (piece.first_row + r) * piece.columns() + c;
        values[static_cast<size_t>(r * columns + first + piece.ColumnOf(c))] =
            theirs[static_cast<size_t>(at)] + (is_gradient ? 0.0F : piece.offset);
      }
    }
    first += piece.columns();
  }
  return values;
}

// No sample has the vectors before the first position, so they keep their values; PyTorch gives
// them a gradient of 0, and lets them decay.
bool IsUnread(const HuggingFaceParameter& parameter) {
  return parameter.name.ends_with("earlier_positions");
}

class Transformers : public ::testing::TestWithParam<std::tuple<std::string, Precision>> {
 protected:
  void SetUp() override {
    const absl::Status has = stagecoach::testing::HasOnCpu(precision());
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
  static const std::string& fixture() { return std::get<0>(GetParam()); }
  static Precision precision() { return std::get<1>(GetParam()); }
  static double tolerance() { return ToleranceOf(fixture(), precision()); }
};

TEST_P(Transformers, HaveTheLogitsAndTheLoss) {
  const TensorFile expected(Fixture(fixture()) + "/expected.safetensors");
  const FixtureRun run = RunOf(fixture(), 2, "1f1b", Optimizer::Sgd(0.9F), 0.0F, precision());
  ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, run.trainer->Predict(*run.data));
  ExpectClose(logits, expected.Values<float>("logits"), tolerance(), "logits");
  ASSERT_OK_AND_ASSIGN(const Evaluation evaluation, run.trainer->Evaluate(*run.data));
  const double loss = expected.Values<double>("loss").front();
  EXPECT_NEAR(evaluation.loss, loss, tolerance() * loss);
}

// Returns the sum of the log-likelihoods of a row's targets by its logits, (positions, vocabulary).
double LogLikelihoodBy(absl::Span<const float> logits, const TokenDataset& data, int64_t row) {
  std::vector<int32_t> labels(static_cast<size_t>(data.context()));
  data.CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(labels.data()),
                                      labels.size() * sizeof(int32_t)));
  const auto V = static_cast<size_t>(data.vocabulary());
  double likelihood = 0.0;
  for (size_t t = 0; t < labels.size(); ++t) {
    const absl::Span<const float> own = logits.subspan(t * V, V);
    double sum = 0.0;
    for (const float logit : own) sum += std::exp(static_cast<double>(logit));
    likelihood += static_cast<double>(own[static_cast<size_t>(labels[t])]) - std::log(sum);
  }
  return likelihood;
}

// The log-likelihood of a position is off by twice the error of its logits at most.
TEST_P(Transformers, HaveTheLogLikelihoodOfEachSample) {
  const TensorFile expected(Fixture(fixture()) + "/expected.safetensors");
  const FixtureRun run = RunOf(fixture(), 2, "1f1b", Optimizer::Sgd(0.9F), 0.0F, precision());
  const std::vector<float> logits = expected.Values<float>("logits");
  const size_t of_row = logits.size() / static_cast<size_t>(run.data->rows());
  double largest = 0.0;
  for (const float logit : logits) largest = std::max(largest, std::fabs(double{logit}));
  std::vector<double> ours;
  const auto take = [&](absl::Span<const Evaluation> rows) {
    for (const Evaluation& row : rows) {
      EXPECT_EQ(row.answers, run.data->context());
      ours.push_back(-row.loss * static_cast<double>(row.answers));
    }
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const Evaluation all, run.trainer->EvaluateRows(*run.data, take));
  ASSERT_EQ(std::ssize(ours), run.data->rows());
  for (size_t row = 0; row < ours.size(); ++row) {
    const double theirs = LogLikelihoodBy(absl::MakeConstSpan(logits).subspan(row * of_row, of_row),
                                          *run.data, static_cast<int64_t>(row));
    EXPECT_NEAR(ours[row], theirs,
                static_cast<double>(run.data->context()) * 2 * ToleranceOf(fixture(), precision()) *
                    largest)
        << row;
  }
  const double loss = expected.Values<double>("loss").front();
  EXPECT_NEAR(all.loss, loss, ToleranceOf(fixture(), precision()) * loss);
}

// The first step of SGD leaves the gradient in its state.
TEST_P(Transformers, HaveTheGradients) {
  const TensorFile expected(Fixture(fixture()) + "/expected.safetensors");
  const TestFolder folder;
  const FixtureRun run = RunOf(fixture(), 3, "zb-h1", Optimizer::Sgd(0.9F), 0.0F, precision());
  ASSERT_OK(run.trainer->Step(*run.data, Rows(0, kFixtureRows)));
  ASSERT_OK_AND_ASSIGN(const std::string saved, run.trainer->Save(folder.path().string()));
  std::map<std::string, std::vector<float>> gradients;
  for (const auto& entry : std::filesystem::directory_iterator(saved)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".optimizer.safetensors")) continue;
    const TensorFile file(path);
    for (const std::string& name : file.names()) gradients[name] = file.Values<float>(name);
  }
  for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(run.transformer)) {
    if (IsUnread(parameter)) continue;
    ExpectClose(gradients[parameter.name + ".momentum_buffer"],
                InOurOrder(parameter, expected, "gradient.", run.transformer), tolerance(),
                parameter.name);
  }
}

TEST_P(Transformers, StepAsAdamWDoes) {
  const TensorFile expected(Fixture(fixture()) + "/expected.safetensors");
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.beta2 = 0.95F;
  optimizer.epsilon = 1e-4F;
  optimizer.weight_decay = 0.1F;
  const auto run_in = [&](Precision precision, int devices) {
    return RunOf(fixture(), devices, "1f1b", optimizer, kFixtureRate, precision);
  };
  if (precision() != Precision::kFloat32) {
    const FixtureRun run = run_in(precision(), 3), exact = run_in(Precision::kFloat32, 1);
    ExpectStepsOfAdamW(*run.trainer, *exact.trainer, run.model, *run.data, run.options,
                       tolerance());
    return;
  }
  for (const int devices : {1, 3}) {
    const FixtureRun run = run_in(precision(), devices);
    const HuggingFaceFolder folder =
        HuggingFaceFolder::Open(Fixture(fixture()), run.transformer).value();
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(run.trainer->Step(*run.data, Rows(0, kFixtureRows)));
    }
    for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(run.transformer)) {
      ASSERT_OK_AND_ASSIGN(const std::vector<float> ours, run.trainer->Parameter(parameter.name));
      if (IsUnread(parameter)) {
        std::vector<float> theirs(ours.size());
        ASSERT_OK(folder.Read({.name = parameter.name}, TensorOf(theirs)));
        EXPECT_EQ(ours, theirs);
        continue;
      }
      ExpectClose(ours, InOurOrder(parameter, expected, "step3.", run.transformer), tolerance(),
                  parameter.name);
    }
  }
}

// The bits are the same, in one file and in several.
TEST_P(Transformers, ComeBackFromTheFilesTheyAreExportedTo) {
  const TestFolder folder;
  const std::string out = (folder.path() / "out").string();
  const FixtureRun run = RunOf(fixture(), 2, "1f1b", Optimizer::AdamW(), kFixtureRate, precision());
  ASSERT_OK(run.trainer->Step(*run.data, Rows(0, kFixtureRows)));
  SaveOptions options;
  options.model_source = ModelFileOf(run.transformer);
  ASSERT_OK_AND_ASSIGN(const std::string saved,
                       run.trainer->Save((folder.path() / "run").string(), options));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));
  for (const int64_t file_bytes : {kHuggingFaceFileBytes, int64_t{4000}}) {
    const std::string to = absl::StrCat(out, file_bytes);
    ASSERT_OK(ExportToHuggingFace(checkpoint, to, {.file_bytes = file_bytes}));
    EXPECT_EQ(base::Exists(to + "/model.safetensors.index.json"), file_bytes == 4000);
    ASSERT_OK_AND_ASSIGN(Transformer transformer, ReadHuggingFaceConfigFile(to));
    EXPECT_EQ(transformer.context, ReadHuggingFaceConfigFile(Fixture(fixture())).value().context);
    transformer.context = run.transformer.context;
    EXPECT_EQ(transformer, run.transformer);
    ASSERT_OK_AND_ASSIGN(const HuggingFaceFolder read, HuggingFaceFolder::Open(to, transformer));
    for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(transformer)) {
      const std::vector<float> ours = run.trainer->Parameter(parameter.name).value();
      std::vector<float> theirs(ours.size());
      ASSERT_OK(read.Read({.name = parameter.name}, TensorOf(theirs)));
      EXPECT_EQ(theirs, ours) << parameter.name;
    }
  }
  EXPECT_THAT(ExportToHuggingFace(checkpoint, absl::StrCat(out, 4000)),
              StatusIs(absl::StatusCode::kAlreadyExists, "config.json is there already"));
}

INSTANTIATE_TEST_SUITE_P(
    All, Transformers,
    ::testing::Combine(::testing::Values("gpt2", "llama", "llama_tied", "llama3", "llama_yarn",
                                         "llama_dynamic", "mistral", "phi3", "phi3_longrope",
                                         "phi4_mini", "qwen2", "qwen3", "opt", "gpt_neox",
                                         "gpt_neox_sequential", "gemma", "gemma2", "gemma3"),
                       ::testing::Values(Precision::kFloat32, Precision::kBfloat16)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param), "_", PrecisionName(std::get<1>(test.param)));
    });

// The expected values are those of "llama", rounded.
TEST(HuggingFaceFolder, ReadsFilesOfBfloat16WithAnIndex) {
  const Transformer model = ReadHuggingFaceConfigFile(Fixture("sharded")).value();
  ASSERT_OK_AND_ASSIGN(const HuggingFaceFolder rounded,
                       HuggingFaceFolder::Open(Fixture("sharded"), model));
  ASSERT_OK_AND_ASSIGN(const HuggingFaceFolder exact,
                       HuggingFaceFolder::Open(Fixture("llama"), model));
  for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(model)) {
    std::vector<float> a(
        static_cast<size_t>(parameter.pieces.front().rows() * parameter.columns()));
    std::vector<float> b(a.size());
    ASSERT_OK(rounded.Read({.name = parameter.name}, TensorOf(a)));
    ASSERT_OK(exact.Read({.name = parameter.name}, TensorOf(b)));
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i], b[i], std::fabs(b[i]) / 256) << parameter.name << " " << i;
    }
  }
  EXPECT_THAT(exact.Read({.name = "layer 1: 9.weight"}, {}), StatusIs(absl::StatusCode::kNotFound));
}

// Returns the config.json of a fixture with another value of one key.
std::string ConfigWith(const std::string& fixture, const std::string& key,
                       const std::string& value) {
  nlohmann::json config =
      nlohmann::json::parse(base::ReadFile(Fixture(fixture) + "/config.json", 1 << 20).value());
  config[key] = nlohmann::json::parse(value);
  return config.dump();
}

// A copy of a fixture's folder, to be damaged.
class DamagedFolder : public ::testing::Test {
 protected:
  DamagedFolder() {
    std::filesystem::copy(Fixture("llama"), path(), std::filesystem::copy_options::recursive);
  }
  std::string path() const { return (folder_.path() / "llama").string(); }
  // Replaces a text in the header of the tensors' file by one of the same length.
  void Replace(const std::string& from, const std::string& to) const {
    const std::string file = path() + "/model.safetensors";
    const std::string bytes = base::ReadFile(file, 1 << 24).value();
    ASSERT_THAT(bytes, HasSubstr(from));
    ASSERT_EQ(from.size(), to.size());
    std::ofstream(file, std::ios::binary) << absl::StrReplaceAll(bytes, {{from, to}});
  }
  absl::Status Open() const {
    const Transformer model = ReadHuggingFaceConfigFile(Fixture("llama")).value();
    return HuggingFaceFolder::Open(path(), model).status();
  }

 private:
  const TestFolder folder_;
};

TEST_F(DamagedFolder, TensorsThatAreMissingUnknownOrOfAnotherShapeAreNamed) {
  EXPECT_OK(Open());
  Transformer shorter = ReadHuggingFaceConfigFile(Fixture("llama")).value(), wider = shorter;
  shorter.blocks = 1;
  wider.hidden = 32;
  ExpectRefusals({
      {HuggingFaceFolder::Open(path(), shorter), "a tensor \"layers.1."},
      {HuggingFaceFolder::Open(path(), wider), "has the shape [24, 16], and the model's [32, 16]"},
  });
  Replace("layers.1.mlp.up_proj", "layers.1.mlp.us_proj");
  EXPECT_THAT(Open(), IsRefused("\"layers.1.mlp.up_proj.weight\" is missing"));
}

// The head may be a copy of the table's values.
TEST_F(DamagedFolder, ATiedHeadWithValuesOfItsOwnIsRefused) {
  std::ofstream(path() + "/config.json") << ConfigWith("llama", "tie_word_embeddings", "true");
  const Transformer model = ReadHuggingFaceConfigFile(path()).value();
  EXPECT_THAT(HuggingFaceFolder::Open(path(), model),
              IsRefused("\"lm_head.weight\" has other values than"));
  const std::string file = path() + "/model.safetensors";
  std::string bytes = base::ReadFile(file, 1 << 24).value();
  const SafetensorsHeader header =
      ParseSafetensors(bytes, static_cast<int64_t>(bytes.size())).value();
  const auto begin_of = [&](absl::string_view name) {
    return std::find_if(header.tensors.begin(), header.tensors.end(),
                        [&](const SafetensorsEntry& entry) { return entry.name == name; });
  };
  const auto head = begin_of("lm_head.weight"), table = begin_of("model.embed_tokens.weight");
  std::memcpy(&bytes[static_cast<size_t>(head->begin)], &bytes[static_cast<size_t>(table->begin)],
              static_cast<size_t>(head->bytes()));
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_OK(HuggingFaceFolder::Open(path(), model));
}

TEST_F(DamagedFolder, ParametersInAPickleAreToBeConverted) {
  std::filesystem::rename(path() + "/model.safetensors", path() + "/pytorch_model.bin");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound,
                               "pytorch_model.bin and no model.safetensors: convert it"));
}

TEST_F(DamagedFolder, AHeaderThatLiesIsRefused) {
  Replace("[16,24]", "[16,25]");
  EXPECT_THAT(Open(), IsRefused("model.safetensors"));
}

TEST_F(DamagedFolder, AnIndexMayNotLeaveTheFolder) {
  std::ofstream(path() + "/model.safetensors.index.json")
      << R"({"weight_map": {"model.norm.weight": "../llama/model.safetensors"}})";
  EXPECT_THAT(Open(), IsRefused("is not the name of a file in the folder"));
}

TEST(HuggingFaceConfig, TellsTheDropoutThatItAsksFor) {
  EXPECT_EQ(HuggingFaceDropoutOf(R"({"model_type": "gpt2", "resid_pdrop": 0.2, "attn_pdrop": 0})")
                .value(),
            "resid_pdrop 0.2, embd_pdrop 0.1");
  EXPECT_EQ(HuggingFaceDropoutOf(R"({"model_type": "llama"})").value(), "");
  EXPECT_EQ(HuggingFaceDropoutOf(R"({"model_type": "llama", "attention_dropout": 0.5})").value(),
            "attention_dropout 0.5");
  EXPECT_THAT(HuggingFaceDropoutOf(R"({"model_type": "llama", "attention_dropout": "no"})"),
              IsRefused("$.attention_dropout"));
}

TEST(HuggingFaceConfig, WhatThereIsNoLayerForIsRefused) {
  const Refusal<std::string> refusals[] = {
      {ConfigWith("gpt2", "model_type", "\"bert\""), "$.model_type: is \"bert\""},
      {ConfigWith("gpt2", "activation_function", "\"relu\""), "$.activation_function"},
      {ConfigWith("gpt2", "scale_attn_weights", "false"), "$.scale_attn_weights: is false"},
      {ConfigWith("gpt2", "add_cross_attention", "true"), "$.add_cross_attention"},
      {ConfigWith("gpt2", "pruned_heads", "{\"0\": [1]}"), "$.pruned_heads: is {\"0\":[1]}"},
      {ConfigWith("gpt2", "rope_theta", "1e4"), "unknown key \"rope_theta\""},
      {ConfigWith("gpt2", "surprise", "0"), "it may change what the model computes"},
      {ConfigWith("llama", "attention_bias", "true"), "$.attention_bias"},
      {ConfigWith("llama", "rope_scaling", "{\"type\": \"linear\"}"),
       "$.rope_scaling: the key \"factor\" is missing"},
      {ConfigWith("llama", "rope_scaling", "{\"type\": \"linear\", \"factor\": 0.5}"),
       "$.rope_scaling.type: rotary positions cannot be scaled by 0.5, expected at least 1"},
      {ConfigWith("llama", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 2.0}"),
       "$.rope_scaling: the key \"low_freq_factor\" is missing"},
      {ConfigWith("llama3", "rope_parameters",
                  R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 4,
                      "high_freq_factor": 1, "original_max_position_embeddings": 8})"),
       "cannot be scaled between 4 and 1 turns"},
      {ConfigWith("llama", "rope_parameters", "{\"rope_type\": \"ntk\"}"),
       "$.rope_parameters.rope_type: is \"ntk\", expected \"default\", \"linear\""},
      {ConfigWith("llama", "rope_parameters", "{\"rope_type\": \"dynamic\"}"),
       "\"factor\" is missing"},
      {ConfigWith("llama", "rope_parameters", R"({"rope_type": "yarn", "factor": 0.5})"),
       "cannot be scaled by 0.5"},
      {ConfigWith("llama", "rope_parameters",
                  R"({"rope_type": "longrope", "short_factor": [1], "long_factor": [1]})"),
       "rotary positions have 1 divisors, expected one for each of the 2 pairs"},
      {ConfigWith("llama", "rope_parameters",
                  R"({"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1]})"),
       "by 2 short and 1 long divisors"},
      {ConfigWith("llama", "rope_parameters", "{\"factor\": 2.0}"), "unknown key \"factor\""},
      {ConfigWith("llama", "rope_parameters", "{\"partial_rotary_factor\": 0.5}"),
       "partial_rotary_factor"},
      {ConfigWith("llama", "partial_rotary_factor", "0.5"), "$.partial_rotary_factor"},
      {ConfigWith("llama", "head_dim", "0"), "$.head_dim"},
      {ConfigWith("mistral", "sliding_window", "-1"), "$.sliding_window"},
      {ConfigWith("mistral", "use_sliding_window", "true"), "unknown key \"use_sliding_window\""},
      {ConfigWith("phi3", "rope_parameters", "{\"partial_rotary_factor\": 0.25}"),
       "$.partial_rotary_factor: rotates 1 of the 4 numbers of a head, expected pairs of them"},
      {ConfigWith("phi3", "lm_head_bias", "true"), "$.lm_head_bias"},
      {ConfigWith("phi3", "rope_scaling", "{\"type\": \"longrope\"}"),
       "\"short_factor\" is missing"},
      {ConfigWith("llama", "auto_map", "{}"), "unknown key \"auto_map\""},
      {ConfigWith("qwen2", "layer_types", "[\"sliding_attention\"]"),
       "$.layer_types: has 1 types, expected 2, one for each layer"},
      {ConfigWith("qwen2", "layer_types", R"(["full_attention", "chunked_attention"])"),
       "$.layer_types[1]: is \"chunked_attention\", expected \"full_attention\""},
      {ConfigWith("qwen2", "layer_types", R"(["sliding_attention", "full_attention"])"),
       "$.layer_types: has layers without a window behind one with it"},
      {ConfigWith("qwen2", "use_sliding_window", "false"),
       "$.layer_types: has layers with a window, and there is none"},
      {ConfigWith("qwen2", "max_window_layers", "-1"), "$.max_window_layers"},
      {ConfigWith("qwen2", "attention_bias", "true"), "$.attention_bias"},
      {ConfigWith("qwen2", "use_mrope", "true"), "$.use_mrope"},
      {ConfigWith("qwen3", "attention_bias", "true"), "$.attention_bias"},
      {ConfigWith("llama", "quantization_config", "{}"),
       "$.quantization_config.bnb_4bit_quant_type"},
      {ConfigWith("llama", "quantization_config", R"({"quant_method": "awq"})"),
       "$.quantization_config.quant_method: is \"awq\", expected \"bitsandbytes\""},
      {ConfigWith("llama", "quantization_config", R"({"bnb_4bit_quant_type": "fp4"})"),
       "$.quantization_config.bnb_4bit_quant_type: is \"fp4\", expected \"nf4\""},
      {ConfigWith("llama", "quantization_config",
                  R"({"bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "bfloat16"})"),
       "$.quantization_config.bnb_4bit_quant_storage"},
      {ConfigWith("llama", "quantization_config",
                  R"({"load_in_4bit": true, "load_in_8bit": true})"),
       "$.quantization_config.load_in_4bit: expected this or load_in_8bit"},
      {ConfigWith("llama", "sliding_window", "4096"), "unknown key \"sliding_window\""},
      {ConfigWith("llama", "eos_token_id", "\"</s>\""), "$.eos_token_id"},
      {ConfigWith("llama", "bos_token_id", "[1, 3]"), "$.bos_token_id: has several ids"},
      {ConfigWith("llama", "num_key_value_heads", "3"), "4 heads cannot share 3"},
  };
  ExpectRefusals(ReadHuggingFaceConfig, refusals);
}

TEST(HuggingFaceConfig, WhatChangesNothingIsTaken) {
  const Transformer model = ReadHuggingFaceConfigFile(Fixture("llama")).value();
  const std::pair<const char*, const char*> keys[] = {
      {"surprise", "null"},
      {"temperature", "0.5"},
      {"task_specific_params", "{\"a\": 1}"},
      {"pruned_heads", "{}"},
      {"rope_scaling", "{\"rope_type\": \"default\", \"factor\": null}"},
      {"sliding_window", "null"}};
  for (const auto& [key, value] : keys) {
    EXPECT_EQ(ReadHuggingFaceConfig(ConfigWith("llama", key, value)).value(), model) << key;
  }
}

// That of Phi 3 mini with 4,096 positions.
TEST(HuggingFaceConfig, OfPhi3IsThatOfALlamaWithJoinedTensors) {
  ASSERT_OK_AND_ASSIGN(const Transformer model, ReadHuggingFaceConfig(R"({
      "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 1,
      "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
      "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096,
      "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000,
      "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
      "sliding_window": 2047, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.39.3", "use_cache": true, "vocab_size": 32064})"));
  Transformer expected =
      NamedTransformer(
          "llama:blocks=32,width=3072,heads=32,kv_heads=32,hidden=8192,context=4096,window=2047,"
          "vocabulary=32064,norm_epsilon=1e-5,tied=0")
          .value();
  expected.has_joined_tensors = true;
  expected.end_of_text = {32000};
  expected.begin_of_text = 1;
  EXPECT_EQ(model, expected) << HuggingFaceConfigOf(model);
  EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model);
}

// That of Phi 4 mini, but for the lists of its divisors, which have 48 numbers.
TEST(HuggingFaceConfig, OfPhi4MiniHasHeadsThatAreRotatedInPart) {
  const std::string config = R"({
      "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199999,
      "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
      "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
      "interpolate_factor": 1, "lm_head_bias": false, "max_position_embeddings": 131072,
      "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
      "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
      "rope_scaling": {"long_factor": [LIST], "short_factor": [LIST], "type": "longrope"},
      "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
      "vocab_size": 200064})";
  const auto with = [&](int divisors) {
    const std::vector<int> list(static_cast<size_t>(divisors), 2);
    return ReadHuggingFaceConfig(absl::StrReplaceAll(config, {{"LIST", absl::StrJoin(list, ",")}}));
  };
  ASSERT_OK_AND_ASSIGN(const Transformer model, with(48));
  EXPECT_EQ(model.rotary_size, 96);
  EXPECT_EQ(model.size_of_head(), 128);
  EXPECT_EQ(model.window, 0);
  EXPECT_TRUE(model.is_tied);
  EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model);
  EXPECT_THAT(with(64), IsRefused("64 divisors, expected one for each of the 48 pairs of a head"));
}

struct PublishedConfig {
  const char* name;  // as NamedTransformer has it
  const char* json;
};

// These are the files of the published weights, whose keys must all be known.
TEST(HuggingFaceConfig, OfPublishedModelsAreTheModelsOfThatName) {
  const PublishedConfig published[] = {
      {"llama3.2-1b", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
          "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64,
          "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
          "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
          "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
          "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
          "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                           "original_max_position_embeddings": 8192, "rope_type": "llama3"},
          "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
          "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})"},
      {"llama3-8b", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
          "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
          "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
          "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama",
          "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
          "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
          "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
          "transformers_version": "4.40.0.dev0", "use_cache": true, "vocab_size": 128256})"},
      {"qwen2.5-0.5b", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
          "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
          "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
          "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
          "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
          "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
          "tie_word_embeddings": true, "torch_dtype": "bfloat16",
          "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
          "use_sliding_window": false, "vocab_size": 151936})"},
      {"qwen3-0.6b", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
          "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
          "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
          "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
          "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
          "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
          "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
          "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
          "use_sliding_window": false, "vocab_size": 151936})"}};
  for (const auto& [name, json] : published) {
    ASSERT_OK_AND_ASSIGN(const Transformer model, ReadHuggingFaceConfig(json));
    EXPECT_EQ(model, NamedTransformer(name).value()) << HuggingFaceConfigOf(model);
  }
  for (const char* const name : {"llama3.2-3b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-8b"}) {
    const Transformer model = NamedTransformer(name).value();
    EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model) << name;
  }
}

// transformers has these formulas in modeling_rope_utils.py.
TEST(HuggingFaceConfig, HasTheScaleOfRotations) {
  const auto scaling = [](const char* fixture, const char* value) {
    const Transformer model =
        ReadHuggingFaceConfig(ConfigWith(fixture, "rope_parameters", value)).value();
    EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model);
    EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model) << ModelFileOf(model);
    return model.rotary_scaling;
  };
  // 8 positions; without a factor, as many as there are more of than original ones.
  const RotaryScaling usual = scaling("llama", R"({"rope_type": "yarn", "factor": 4.0})");
  EXPECT_DOUBLE_EQ(usual.scale, 0.1 * std::log(4.0) + 1.0);
  EXPECT_EQ(usual.original_positions, 8);
  EXPECT_EQ(usual.high_turns, 32.0);
  EXPECT_TRUE(usual.truncates);
  const RotaryScaling ratio = scaling(
      "llama", R"({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 2,
                   "beta_fast": 0, "beta_slow": 0.5, "truncate": false})");
  EXPECT_EQ(ratio.factor, 4.0);
  EXPECT_EQ(ratio.low_turns, 0.5);
  EXPECT_EQ(ratio.high_turns, 32.0);
  EXPECT_FALSE(ratio.truncates);
  EXPECT_DOUBLE_EQ(scaling("llama", R"({"rope_type": "yarn", "factor": 4.0, "mscale": 2.0,
                                       "mscale_all_dim": 3.0})")
                       .scale,
                   (0.2 * std::log(4.0) + 1.0) / (0.3 * std::log(4.0) + 1.0));
  EXPECT_EQ(
      scaling("llama", R"({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5})").scale,
      1.5);
  const RotaryScaling lists =
      scaling("llama", R"({"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4],
                   "original_max_position_embeddings": 4})");
  EXPECT_DOUBLE_EQ(lists.scale, std::sqrt(1.0 + std::log(2.0) / std::log(4.0)));
  EXPECT_EQ(scaling("llama", R"({"rope_type": "longrope", "short_factor": [1, 2], "factor": 1.0,
                                 "long_factor": [3, 4]})")
                .scale,
            1.0);
  // Those beside them take precedence in Phi 3, whose earlier names mean the same.
  const RotaryScaling phi3 = scaling("phi3", R"({"type": "su", "short_factor": [1, 2],
      "long_factor": [3, 4], "original_max_position_embeddings": 4})");
  EXPECT_EQ(phi3.kind, RotaryKind::kLongRope);
  EXPECT_EQ(phi3.original_positions, 8);
  EXPECT_EQ(scaling("llama", R"({"rope_type": "dynamic", "factor": 2.0})").original_positions, 8);
}

// A config may leave out what is usual for its type.
TEST(HuggingFaceConfig, HasTheDefaultsOfItsType) {
  const auto model = [](const std::string& type) {
    return ReadHuggingFaceConfig(absl::StrCat(R"({"model_type": ")", type, R"(",
        "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 64,
        "intermediate_size": 4})"))
        .value();
  };
  EXPECT_EQ(model("llama").kv_heads, 64);
  EXPECT_EQ(model("mistral").kv_heads, 8);
  EXPECT_EQ(model("qwen2").kv_heads, 32);
  EXPECT_EQ(model("qwen3").kv_heads, 32);
  EXPECT_EQ(model("qwen2").size_of_head(), 1);
  EXPECT_EQ(model("phi3").kv_heads, 64);
  EXPECT_EQ(model("phi3").norm_epsilon, 1e-5);
  EXPECT_EQ(model("llama").norm_epsilon, 1e-6);
  EXPECT_EQ(model("phi3").end_of_text, std::vector<int64_t>{32000});
  EXPECT_EQ(model("qwen3").size_of_head(), 128);
  EXPECT_EQ(model("llama").end_of_text, std::vector<int64_t>{2});
  EXPECT_TRUE(model("qwen3").end_of_text.empty());
}

// A window that is as long as the context is none.
TEST(HuggingFaceConfig, SaysWhichBlocksHaveAWindow) {
  const auto windows = [](const std::string& config) {
    const Transformer model = ReadHuggingFaceConfig(config).value();
    EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model);
    EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model);
    std::vector<int64_t> all;
    for (int64_t block = 0; block < model.blocks; ++block) {
      all.push_back(model.has_window(block) ? model.window : 0);
    }
    return all;
  };
  using Windows = std::vector<int64_t>;
  const auto changed = [](const char* fixture, const char* key, const char* value) {
    return ConfigWith(fixture, key, value);
  };
  EXPECT_EQ(windows(changed("mistral", "sliding_window", "6")), (Windows{6, 6}));
  EXPECT_EQ(windows(changed("mistral", "sliding_window", "null")), (Windows{0, 0}));
  EXPECT_EQ(windows(changed("mistral", "sliding_window", "8")), (Windows{0, 0}));
  EXPECT_EQ(windows(changed("phi3", "sliding_window", "6")), (Windows{6, 6}));
  EXPECT_EQ(windows(changed("qwen2", "sliding_window", "6")), (Windows{0, 6}));
  EXPECT_EQ(windows(changed("qwen2", "sliding_window", "8")), (Windows{0, 0}));
  EXPECT_EQ(windows(changed("qwen2", "layer_types", "null")), (Windows{0, 5}));
  EXPECT_EQ(
      windows(changed("qwen2", "layer_types", R"(["sliding_attention", "sliding_attention"])")),
      (Windows{5, 5}));
  EXPECT_EQ(windows(changed("qwen2", "layer_types", R"(["full_attention", "full_attention"])")),
            (Windows{0, 0}));
  const auto of_type = [](const char* type, const char* more) {
    return absl::StrCat(R"({"model_type": ")", type, R"(", "num_hidden_layers": 3,
        "hidden_size": 64, "num_attention_heads": 32, "intermediate_size": 4)",
                        more, "}");
  };
  EXPECT_EQ(windows(of_type("mistral", "")), (Windows{4096, 4096, 4096})) << "its default";
  EXPECT_EQ(windows(of_type("qwen2", R"(, "sliding_window": 6)")), (Windows{0, 0, 0}));
  EXPECT_EQ(windows(of_type("qwen2", R"(, "use_sliding_window": true)")), (Windows{0, 0, 0}))
      << "28 layers have none";
  for (const char* const type : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(of_type(type, R"(, "use_sliding_window": true, "sliding_window": 100,
        "max_window_layers": 2)")),
              (Windows{0, 0, 100}));
  }
}

}  // namespace
}  // namespace stagecoach::engine
