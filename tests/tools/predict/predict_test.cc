// `predict`, as a user sees it.
#include <signal.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class PredictCommand : public ::testing::Test {
 protected:
  // Trains on a table whose classes have names.
  void SetUp() override {
    std::ofstream table(table_);
    table << "size,weight,kind\n";
    for (int row = 0; row < 200; ++row) {
      table << Features(row) << (row % 5 < 2 ? "ant" : "\"bee, or wasp\"") << "\n";
    }
    table.close();
    const Finished run = RunStagecoach({"train",
                                        "--json",
                                        "--data",
                                        table_,
                                        "--label",
                                        "kind",
                                        "--layers",
                                        "5",
                                        "--width",
                                        "64",
                                        "--global-batch-size",
                                        "40",
                                        "--epochs",
                                        "8",
                                        "--checkpoint",
                                        run_,
                                        "--checkpoint-every",
                                        "4",
                                        "--learning-rate",
                                        "0.01"});
    ASSERT_EQ(run.exit_status, 0) << run.err;
    for (const nlohmann::json& event : run.Events()) {
      if (event["event"] == "epoch") epoch_ = event;
    }
  }
  static std::string Features(int row) {
    return absl::StrCat(row % 5 < 2 ? 3 : 40, ".", row, ",", (row * 7) % 13, ",");
  }
  Finished Predict(const Arguments& more) const {
    return RunStagecoach(Joined({"predict", "--checkpoint", run_}, more));
  }
  nlohmann::json End(const Arguments& more) const {
    const Finished predicted = Predict(Joined({"--json"}, more));
    EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
    EXPECT_EQ(predicted.err, "");
    return predicted.Events().back();
  }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  static std::string Contents(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static std::vector<std::string> Lines(const std::string& path) {
    return absl::StrSplit(Contents(path), '\n', absl::SkipEmpty());
  }

  const TestFolder folder_;
  const std::string table_ = (folder_.path() / "table.csv").string();
  const std::string run_ = (folder_.path() / "run").string();
  nlohmann::json epoch_;
};

TEST_F(PredictCommand, TestsTheRunAsItTestedItself) {
  const nlohmann::json end = End({});
  EXPECT_EQ(end["rows"], 40);
  EXPECT_EQ(end["loss"], epoch_["test_loss"]);
  EXPECT_EQ(end["accuracy"], epoch_["test_accuracy"]);
  EXPECT_GT(end["accuracy"], 0.9);
  int rows = 0, correct = 0;
  for (const nlohmann::json& of_class : end["classes"]) {
    rows += of_class["rows"].get<int>();
    correct += of_class["correct"].get<int>();
  }
  EXPECT_EQ(rows, 40);
  EXPECT_EQ(correct, end["correct"]);
}

TEST_F(PredictCommand, GivesTheSameBitsOverAnyDevices) {
  const nlohmann::json one = End({"--data", table_, "--stages", "1"});
  for (const Arguments& devices :
       std::vector<Arguments>{{},
                              {"--stages", "3"},
                              {"--stages", "5", "--micro-batches", "2"},
                              {"--devices", "2", "--replicas", "4"},
                              {"--micro-batches", "1", "--threads-per-device", "2"}}) {
    const nlohmann::json end = End(Joined({"--data", table_}, devices));
    EXPECT_EQ(end["outputs_hash"], one["outputs_hash"]);
    EXPECT_EQ(end["loss"], one["loss"]);
    EXPECT_EQ(end["confusion"], one["confusion"]);
    for (const nlohmann::json& device : end["devices"]) {
      EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
    }
  }
}

TEST_F(PredictCommand, WritesOutputsAndClassesInEachFormat) {
  std::vector<std::string> files;
  for (const char* format : {"csv", "jsonl", "npy"}) {
    const std::string outputs = Path(absl::StrCat("outputs.", format));
    const std::string classes = Path(absl::StrCat("classes.", format));
    const nlohmann::json end = End({"--data", table_, "--outputs", outputs, "--classes", classes});
    EXPECT_EQ(end["files"], (std::vector<std::string>{outputs, classes}));
  }
  const std::vector<std::string> outputs = Lines(Path("outputs.csv"));
  const std::vector<std::string> classes = Lines(Path("classes.csv"));
  ASSERT_EQ(outputs.size(), 201U);
  ASSERT_EQ(classes.size(), 201U);
  EXPECT_EQ(outputs[0], "row,ant,\"bee, or wasp\"");
  EXPECT_EQ(classes[0], "row,class,label");
  const std::vector<std::string> json_outputs = Lines(Path("outputs.jsonl"));
  const std::vector<std::string> json_classes = Lines(Path("classes.jsonl"));
  const std::string npy_outputs = Contents(Path("outputs.npy"));
  const std::string npy_classes = Contents(Path("classes.npy"));
  const size_t header = npy_outputs.size() - 200 * 2 * sizeof(float);
  EXPECT_EQ(header % 64, 0U);
  EXPECT_THAT(npy_outputs.substr(0, header),
              HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (200, 2), }"));
  EXPECT_THAT(npy_classes, HasSubstr("'shape': (200,), }"));
  for (size_t row = 0; row < 200; ++row) {
    float values[2];
    std::memcpy(values, npy_outputs.data() + header + row * sizeof(values), sizeof(values));
    const bool is_ant = values[0] >= values[1];
    const std::vector<std::string> fields = absl::StrSplit(outputs[row + 1], ',');
    ASSERT_EQ(fields.size(), 3U);
    EXPECT_EQ(fields[0], absl::StrCat(row));
    EXPECT_EQ(std::stof(fields[1]), values[0]);
    EXPECT_EQ(std::stof(fields[2]), values[1]);
    const nlohmann::json json = nlohmann::json::parse(json_outputs[row]);
    EXPECT_EQ(json["row"], row);
    EXPECT_EQ(json["outputs"][0].get<float>(), values[0]);
    EXPECT_EQ(json["outputs"][1].get<float>(), values[1]);
    const std::string name = is_ant ? "ant" : "bee, or wasp";
    const std::string label = row % 5 < 2 ? "ant" : "bee, or wasp";
    const auto quoted = [](const std::string& text) {
      return text == "ant" ? text : absl::StrCat("\"", text, "\"");
    };
    EXPECT_EQ(classes[row + 1], absl::StrCat(row, ",", quoted(name), ",", quoted(label)));
    EXPECT_EQ(nlohmann::json::parse(json_classes[row]),
              (nlohmann::json{{"row", row}, {"class", name}, {"label", label}}));
    EXPECT_EQ(npy_classes[npy_classes.size() - 4 * (200 - row)], is_ant ? 0 : 1);
  }
}

TEST_F(PredictCommand, NeedsNoLabels) {
  std::ofstream table(Path("new.csv"));
  table << "weight,size\n";  // in another order
  for (int row = 0; row < 200; ++row) {
    const std::vector<std::string> fields = absl::StrSplit(Features(row), ',');
    table << fields[1] << "," << fields[0] << "\n";
  }
  table.close();
  const nlohmann::json end = End({"--data", Path("new.csv"), "--classes", Path("classes.csv")});
  EXPECT_EQ(end["outputs_hash"], End({"--data", table_})["outputs_hash"]);
  EXPECT_FALSE(end.contains("loss"));
  EXPECT_FALSE(end.contains("classes"));
  EXPECT_EQ(Lines(Path("classes.csv"))[0], "row,class");
  const Finished nothing = Predict({"--data", Path("new.csv")});
  EXPECT_EQ(nothing.exit_status, kStatusUsage);
  ExpectOneLine(nothing.err, HasSubstr("the data has no labels to compare with: name a file"));
  const Finished label = Predict({"--data", Path("new.csv"), "--label", "kind"});
  EXPECT_EQ(label.exit_status, kStatusBadData);
  ExpectOneLine(label.err, HasSubstr("new.csv has no labels, but --label names them"));
}

TEST_F(PredictCommand, TakesAsManyDevicesAsTheModelNeeds) {
  const auto stages_within = [&](const std::string& bytes) {
    const Finished predicted = Predict(
        {"--json", "--data", table_, "--device-memory", bytes, "--threads-per-device", "1"});
    EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
    const nlohmann::json end = predicted.Events().back();
    for (const nlohmann::json& device : end["devices"]) {
      EXPECT_LE(device["measured_peak_bytes"].get<int64_t>(), std::stoll(bytes));
    }
    return predicted.Events().front()["first_layers"].size();
  };
  const auto whole = End({"--data", table_, "--stages", "1", "--threads-per-device", "1"});
  const int64_t peak = whole["devices"][0]["measured_peak_bytes"];
  EXPECT_EQ(stages_within(absl::StrCat(peak)), 1U);
  EXPECT_GT(stages_within(absl::StrCat(peak * 2 / 3)), 1U);
  const Finished none = Predict({"--device-memory", "1kB"});
  EXPECT_EQ(none.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(none.err, HasSubstr("the model does not fit: "));
}

TEST_F(PredictCommand, ShowsWhichClassesAreTakenForWhich) {
  const Finished predicted = Predict({"--data", table_, "--outputs", Path("outputs.npy")});
  EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
  EXPECT_THAT(predicted.out,
              AllOf(HasSubstr("class         rows  accuracy  as ant  as bee, or wasp\n"),
                    HasSubstr("\nant             80   100.0 %      80                .\n"),
                    HasSubstr("data   200 rows\n"), HasSubstr("plan   1 stage, "),
                    HasSubstr("accuracy 100.00 % (200 of 200)"),
                    HasSubstr(absl::StrCat("wrote ", Path("outputs.npy"), "\n")),
                    HasSubstr("fingerprint of the outputs  ")));
}

TEST_F(PredictCommand, RefusesWhatCannotBe) {
  const auto refuses = [&](const Arguments& more, int status, const std::string& message) {
    const Finished refused = Predict(more);
    EXPECT_EQ(refused.exit_status, status) << refused.out;
    ExpectOneLine(refused.err, HasSubstr(message));
    EXPECT_EQ(refused.out, "");
  };
  refuses({"--outputs", Path("a.txt")}, kStatusUsage, "ends in .csv, .jsonl or .npy");
  refuses({"--outputs", Path("a.csv"), "--classes", Path("a.csv")}, kStatusUsage,
          "--outputs and --classes name the same file");
  refuses({"--outputs", Path("a.csv"), "--classes", Path("./a.csv")}, kStatusUsage,
          "the same file");
  refuses({"--outputs", ""}, kStatusUsage, "--outputs: expected a file");
  refuses({"--data", table_, "--classes", table_}, kStatusUsage, "name another file");
  refuses({"--classes", table_}, kStatusUsage, "name another file");
  refuses({"--data", Path("none")}, kStatusBadData, "none: no such file or directory");
  refuses({"--data", ""}, kStatusUsage, "--data: expected a file");
  refuses({"--outputs", Path("none/a.csv")}, kStatusCannotWrite, "No such file or directory");
  refuses({"--data", "synthetic:10x2x2"}, kStatusBadData, "was not trained on synthetic data");
  refuses({"--data", Path("none.csv")}, kStatusBadData, "none.csv");
  refuses({"--replicas", "2", "--micro-batches", "3"}, kStatusBadConfiguration, "a multiple of 2");
  std::ofstream(Path("other.csv")) << "size,weight,kind\n1,2,cow\n";
  refuses({"--data", Path("other.csv")}, kStatusBadData, "\"cow\" in column \"kind\" is none of");
  const Finished missing = RunStagecoach({"predict", "--checkpoint", Path("nowhere")});
  EXPECT_EQ(missing.exit_status, kStatusBadData);
  const Finished unnamed = RunStagecoach({"predict"});
  EXPECT_EQ(unnamed.exit_status, kStatusUsage);
  EXPECT_FALSE(std::filesystem::exists(Path("a.csv")));
}

TEST_F(PredictCommand, RefusesTheRunsDataIfTheyHaveChanged) {
  std::ofstream(table_, std::ios::app) << "1,1000,ant\n";
  const Finished changed = Predict({});
  EXPECT_EQ(changed.exit_status, kStatusBadData);
  ExpectOneLine(changed.err, AllOf(HasSubstr("is not what the model was trained on"),
                                   HasSubstr("name it with --data")));
  EXPECT_EQ(End({"--data", table_})["rows"], 201);
}

TEST_F(PredictCommand, SaysThatAnOptionOfTheCheckpointIsBad) {
  const std::string manifest = absl::StrCat(run_, "/step-00000032/manifest.json");
  std::string text = Contents(manifest);
  ASSERT_EQ(absl::StrReplaceAll({{"\"--layers\",\"value\":\"5\"", "\"--layers\",\"value\":\"-5\""}},
                                &text),
            1);
  std::ofstream(manifest) << text;
  std::ofstream(manifest + ".xxh128") << base::HashOf(text) << "  manifest.json\n";
  const Finished refused = Predict({});
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  ExpectOneLine(refused.err, HasSubstr("an option of the checkpoint, --layers: \"-5\" is not"));
}

TEST_F(PredictCommand, LooksForGpusOnce) {
  const int64_t peak = End({"--stages", "1"})["devices"][0]["measured_peak_bytes"];
  const Finished predicted =
      Predict({"--device", "auto", "--device-memory", absl::StrCat(peak / 2)});
  EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
  const std::vector<std::string> parts = absl::StrSplit(predicted.err, "--device auto: ");
  EXPECT_LE(parts.size(), 2U) << predicted.err;
}

TEST_F(PredictCommand, PassesOverADamagedCheckpoint) {
  const std::string newest = absl::StrCat(run_, "/step-00000032");
  ASSERT_TRUE(std::filesystem::exists(newest));
  std::filesystem::resize_file(absl::StrCat(newest, "/layer-00001.safetensors"), 100);
  const Finished predicted = Predict({"--json"});
  EXPECT_EQ(predicted.exit_status, 0);
  ExpectOneLine(predicted.err, HasSubstr("passes over a checkpoint: "));
  EXPECT_THAT(predicted.Events().front()["checkpoint"].get<std::string>(),
              AllOf(HasSubstr(run_), Not(HasSubstr("step-00000032"))));
}

// The 600,000 rows take a while.
TEST(InterruptedPrediction, LeavesNoFile) {
  const TestFolder folder;
  const std::string run = (folder.path() / "run").string();
  const Finished trained = RunStagecoach({"train", "--data", "synthetic:80x64x4", "--layers", "12",
                                          "--width", "256", "--global-batch-size", "40", "--epochs",
                                          "1", "--stages", "1", "--checkpoint", run});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  const Finished other =
      RunStagecoach({"predict", "--checkpoint", run, "--data", "synthetic:80x32x4"});
  EXPECT_EQ(other.exit_status, kStatusBadData);
  ExpectOneLine(other.err, HasSubstr("has 32 features; the model takes 64"));
  EXPECT_EQ(other.out, "");
  for (const int signal : {SIGINT, SIGHUP}) {
    Child child({"predict", "--json", "--checkpoint", run, "--data", "synthetic:600000x64x4",
                 "--outputs", (folder.path() / "outputs.csv").string(), "--micro-batches", "1"});
    ASSERT_TRUE(child.WaitForOutput("\"event\":\"plan\""));
    child.Signal(signal);
    const Finished predicted = child.Wait();
    // Making that many samples may take long enough to be reported.
    const std::string err(
        absl::StripPrefix(predicted.err, "stagecoach: makes synthetic:600000x64x4\n"));
    if (signal == SIGINT) {
      EXPECT_EQ(predicted.exit_status, kStopped);
      ExpectOneLine(err, HasSubstr("stopped by a signal: nothing is written"));
    } else {
      EXPECT_EQ(predicted.signal, SIGHUP);
      EXPECT_EQ(err, "");
    }
    std::set<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      left.insert(entry.path().filename().string());
    }
    EXPECT_THAT(left, ElementsAre("run"));
  }
}

}  // namespace
}  // namespace stagecoach::tools
