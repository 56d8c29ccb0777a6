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
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    const Finished run =
        RunStagecoach({"train", "--data", table_, "--label", "kind", "--layers", "5", "--width",
                       "64", "--global-batch-size", "40", "--epochs", "8", "--learning-rate",
                       "0.01", "--checkpoint", run_});
    ASSERT_EQ(run.exit_status, 0) << run.err;
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
};

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

// The 600,000 rows take a while.
TEST(InterruptedPrediction, LeavesNoFile) {
  const TestFolder folder;
  const std::string run = (folder.path() / "run").string();
  const Finished trained = RunStagecoach({"train", "--data", "synthetic:80x64x4", "--layers", "12",
                                          "--width", "256", "--global-batch-size", "40", "--epochs",
                                          "1", "--stages", "1", "--checkpoint", run});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
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
