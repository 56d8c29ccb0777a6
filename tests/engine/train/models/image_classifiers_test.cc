// ResNets from and to the files of transformers and torchvision, compared with the logits that
// PyTorch computes with them in float64 (tests/fixtures/image_classifiers/make.py).
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/system/file.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/models/hugging_face.h"
#include "engine/models/model_file.h"
#include "engine/models/presets.h"
#include "engine/models/resnet.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/reference_run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kFailedPrecondition;
using ::stagecoach::testing::Edited;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kClassifierRows = 3;
constexpr int64_t kClassifierClasses = 5;

std::string ClassifierFixture(const std::string& name) {
  return absl::StrCat(STAGECOACH_TEST_FIXTURES, "/image_classifiers/", name);
}

// Returns the path that --init takes.
std::string ParametersIn(const std::string& name) {
  return ClassifierFixture(name) + (name == "torchvision" ? "/state_dict.safetensors" : "");
}

// Returns the model that make.py makes.
ImageClassifier ClassifierOf(const std::string& name) {
  if (name == "bottleneck") {
    return {.net = {.blocks = {1, 2}, .outputs = {8, 16}, .stem = 4, .is_bottleneck = true},
            .classes = kClassifierClasses};
  }
  const bool is_basic = name == "basic";
  return {.net = {.blocks = is_basic ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{1, 2},
                  .outputs = {4, 8},
                  .stem = 4},
          .classes = kClassifierClasses};
}

struct ClassifierRun {
  Model model;
  std::unique_ptr<Trainer> trainer;
  std::shared_ptr<const Dataset> data;
  std::vector<double> logits;  // computed by PyTorch
};

// Runs with the parameters of the fixture, one sample per micro-batch.
ClassifierRun ClassifierRunOf(const std::string& name, int devices) {
  const ReferenceRun reference(absl::StrCat("image_classifiers/", name));
  const ReferenceRun::Entry& x = reference["x"];
  ClassifierRun run;
  run.logits = reference["logits"].values;
  const int64_t features = x.shape.elements() / kClassifierRows;
  run.data = TableDataset::Create({features}, kClassifierClasses,
                                  std::vector<float>(x.values.begin(), x.values.end()), {0, 1, 4})
                 .value();
  const ImageClassifier classifier = ClassifierOf(name);
  run.model = ParseModel(ModelFileOf(classifier.net), features, kClassifierClasses).value();
  run.trainer =
      MakeTrainer(run.model, EvenPlan(run.model, devices, "1f1b", kClassifierRows, 1), {});
  const HuggingFaceFolder files = HuggingFaceFolder::Open(ParametersIn(name), classifier).value();
  EXPECT_OK(run.trainer->SetParameters(std::bind_front(&HuggingFaceFolder::Read, files)));
  return run;
}

class ImageClassifiers : public ::testing::TestWithParam<std::string> {};

TEST_P(ImageClassifiers, HaveTheLogits) {
  for (const int devices : {1, 3}) {
    const ClassifierRun run = ClassifierRunOf(GetParam(), devices);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, run.trainer->Predict(*run.data));
    ASSERT_EQ(logits.size(), run.logits.size());
    for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], run.logits[i], 1e-5);
  }
}

// The bits are the same, including running averages.
TEST_P(ImageClassifiers, ComeBackFromTheFilesTheyAreExportedTo) {
  const TestFolder folder;
  const std::string out = (folder.path() / "out").string();
  const ImageClassifier classifier = ClassifierOf(GetParam());
  const ClassifierRun run = ClassifierRunOf(GetParam(), 2);
  ASSERT_OK(run.trainer->Step(*run.data, Rows(0, kClassifierRows)));
  SaveOptions options;
  options.model_source = ModelFileOf(classifier.net);
  ASSERT_OK_AND_ASSIGN(const std::string saved,
                       run.trainer->Save((folder.path() / "run").string(), options));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));
  ASSERT_OK(ExportToHuggingFace(checkpoint, out));
  ASSERT_OK(ExportToHuggingFace(checkpoint, out + "_split", {.file_bytes = 2000}));
  ASSERT_OK(ExportToTorchvision(checkpoint, out + ".safetensors"));
  EXPECT_EQ(ReadHuggingFaceModelFile(out).value(), HuggingFaceModel(classifier));
  for (const char* end : {"", "_split", ".safetensors"}) {
    ASSERT_OK_AND_ASSIGN(const HuggingFaceFolder read,
                         HuggingFaceFolder::Open(out + end, classifier));
    for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(classifier)) {
      const std::vector<float> ours = run.trainer->Parameter(parameter.name).value();
      std::vector<float> theirs(ours.size());
      ASSERT_OK(read.Read({.name = parameter.name}, TensorOf(theirs)));
      EXPECT_EQ(theirs, ours) << parameter.name << " in " << end;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ImageClassifiers,
                         ::testing::Values("basic", "bottleneck", "torchvision"),
                         [](const auto& test) { return test.param; });

std::vector<SafetensorsEntry> EntriesOf(const std::string& path) {
  const std::string bytes = base::ReadFile(path, 1 << 20).value();
  return ParseSafetensors(bytes, std::ssize(bytes)).value().tensors;
}

// The files have the names, shapes and types of PyTorch's own, including counters of batches.
TEST(ImageClassifierFiles, HaveTheTensorsOfPyTorch) {
  for (const std::string name : {"basic", "bottleneck", "torchvision"}) {
    const TestFolder folder;
    const std::string out = (folder.path() / "out").string();
    const bool is_dict = name == "torchvision";
    const std::string file = is_dict ? out + ".safetensors" : out + "/model.safetensors";
    const ClassifierRun run = ClassifierRunOf(name, 1);
    SaveOptions options;
    options.model_source = ModelFileOf(ClassifierOf(name).net);
    ASSERT_OK_AND_ASSIGN(const std::string saved,
                         run.trainer->Save((folder.path() / "run").string(), options));
    ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));
    ASSERT_OK(is_dict ? ExportToTorchvision(checkpoint, file)
                      : ExportToHuggingFace(checkpoint, out));
    const auto described = [](const std::string& path) {
      std::vector<std::string> tensors;
      for (const SafetensorsEntry& entry : EntriesOf(path)) {
        tensors.push_back(absl::StrCat(entry.name, " ", entry.shape.ToString(),
                                       entry.type.has_value() ? "" : " counter"));
      }
      return tensors;
    };
    const std::string theirs = ParametersIn(name) + (is_dict ? "" : "/model.safetensors");
    EXPECT_THAT(described(file), ::testing::UnorderedElementsAreArray(described(theirs)));
  }
}

// Opens a copy of a fixture's file with a text in its header replaced by one of the same length.
absl::Status OpenReplaced(const std::string& from, const std::string& to) {
  const TestFolder folder;
  const std::string path = (folder.path() / "damaged.safetensors").string();
  const std::string bytes = base::ReadFile(ParametersIn("torchvision"), 1 << 20).value();
  EXPECT_THAT(bytes, HasSubstr(from));
  EXPECT_EQ(from.size(), to.size());
  std::ofstream(path, std::ios::binary) << absl::StrReplaceAll(bytes, {{from, to}});
  return HuggingFaceFolder::Open(path, ClassifierOf("torchvision")).status();
}

TEST(ImageClassifierFiles, NameWhatIsWrongWithThem) {
  EXPECT_OK(OpenReplaced("layer1", "layer1"));
  ImageClassifier other = ClassifierOf("torchvision");
  other.classes = 9;
  ExpectRefusals({
      {OpenReplaced("layer2.0.bn1.running_var", "layer2.0.bn1.running_vax"),
       AllOf(HasSubstr("damaged.safetensors"),
             HasSubstr("\"layer2.0.bn1.running_var\" is missing"))},
      {OpenReplaced("layer1.0.bn1.num_batches_tracked", "layer1.0.bn1.num_batches_trackex"),
       "\"layer1.0.bn1.num_batches_trackex\", which"},
      {OpenReplaced("[4,3,7,7]", "[4,7,3,7]"),
       "\"conv1.weight\" has the shape [4, 7, 3, 7], and the model's [4, 3, 7, 7]"},
      {HuggingFaceFolder::Open(ParametersIn("torchvision"), other),
       "\"fc.bias\" has the shape [5], and the model's [9]"},
      {HuggingFaceFolder::Open(ParametersIn("torchvision"), Transformer()),
       "a file of tensors alone"},
  });
}

TEST(ImageClassifierFiles, NameTheTensorThatIsNotFinite) {
  const TestFolder folder;
  const std::string path = (folder.path() / "damaged.safetensors").string();
  std::string bytes = base::ReadFile(ParametersIn("torchvision"), 1 << 20).value();
  const ClassifierRun run = ClassifierRunOf("torchvision", 1);
  for (const SafetensorsEntry& entry : EntriesOf(ParametersIn("torchvision"))) {
    if (!entry.type.has_value()) continue;  // a counter, which is not read
    std::string damaged = bytes;
    damaged.replace(static_cast<size_t>(entry.begin), 4, "\xff\xff\xff\xff");
    std::ofstream(path, std::ios::binary) << damaged;
    ASSERT_OK_AND_ASSIGN(const HuggingFaceFolder files,
                         HuggingFaceFolder::Open(path, ClassifierOf("torchvision")));
    const absl::Status status =
        run.trainer->SetParameters(std::bind_front(&HuggingFaceFolder::Read, files));
    EXPECT_THAT(status,
                IsRefused(AllOf(HasSubstr(path),
                                HasSubstr(absl::StrCat("the tensor \"", entry.name,
                                                       "\" has a value that is not finite")))));
  }
}

TEST(ImageClassifierConfig, OfAnotherResNetIsRefused) {
  const auto read = [](const std::string& from, const std::string& to) {
    const std::string text =
        base::ReadFile(ClassifierFixture("basic") + "/config.json", 1 << 20).value();
    return ReadHuggingFaceModel(Edited(text, from, to));
  };
  EXPECT_OK(read("relu", "relu"));
  ExpectRefusals({
      {read("'relu'", "'gelu'"), "$.hidden_act"},
      {read("'basic'", "'wide'"), "$.layer_type"},
      {read("'downsample_in_bottleneck': false", "'downsample_in_bottleneck': true"),
       "$.downsample_in_bottleneck"},
      {read("'depths': [", "'depths': [1,"), "groups"},
      {read("'num_channels': 3", "'num_channels': 0"), "$.num_channels"},
  });
}

TEST(ResNetOf, IsTheInverseOfItsModelFile) {
  for (const Preset& preset : Presets()) {
    ASSERT_OK_AND_ASSIGN(const ResNet net, ResNetOf(preset.text()));
    EXPECT_EQ(ModelFileOf(net), preset.text()) << preset.name;
    ASSERT_OK_AND_ASSIGN(const ResNet same, ResNetOf(absl::StrReplaceAll(
                                                preset.text(), {{"\"image\"", "[3, 64, 64]"}})));
    EXPECT_EQ(same, net);
    for (const auto& [from, to] :
         {std::pair("relu = true", "relu = false"), std::pair("padding = 1", "padding = 0"),
          std::pair("[[layer]]\ntype = \"global_avg_pool\"\n", ""),
          std::pair("\"residual\"", "\"residuum\"")}) {
      EXPECT_THAT(ResNetOf(absl::StrReplaceAll(preset.text(), {{from, to}})),
                  StatusIs(kFailedPrecondition, "not those of a ResNet"))
          << from;
    }
  }
  for (const char* other : {"", "layer = 3", "layer = [3]", "[[layer]]\ntype = \"residual\"\n"}) {
    EXPECT_THAT(ResNetOf(other), StatusIs(kFailedPrecondition)) << other;
  }
}

}  // namespace
}  // namespace stagecoach::engine
