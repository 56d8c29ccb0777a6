// Profiles made elsewhere: PipeDream's graphs and tables.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/io/csv_profile.h"
#include "partition/io/pipedream_profile.h"
#include "schedule/memory/memory_plan.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using ::testing::ElementsAre;
using ::testing::StartsWith;

std::string PipedreamFile(const std::string& name) {
  return absl::StrCat(STAGECOACH_PARTITION_TEST_DATA, "/pipedream/", name, ".txt");
}

std::string NodeLine(int number, const std::string& name = "ReLU(inplace)",
                     const std::string& activation = "64.000") {
  return absl::StrCat(
      "node", number, " -- ", name,
      " -- forward_compute_time=1.500, backward_compute_time=3.000, activation_size=", activation,
      ", parameter_size=0.000\n");
}

TEST(PipedreamProfile, ReadsNodesAndEdgesInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      ParsePipedreamProfile(
          absl::StrCat("\tnode2 -- node10\n", NodeLine(10), NodeLine(1, "Input", "100.000"),
                       "node2 -- Linear(in=4 -- out=8) -- forward_compute_time=1.234, "
                       "backward_compute_time=3.0, activation_size=[4.000; 8.4], "
                       "parameter_size=160.000 -- stage_id=3\n\n\tnode1 -- node2"),
          "net"));
  EXPECT_EQ(profile.model, "net");
  ASSERT_EQ(profile.sizes.size(), 1u);
  EXPECT_EQ(profile.sizes[0].micro_batch_rows, 1);
  EXPECT_TRUE(profile.is_chain());
  ASSERT_EQ(profile.num_layers(), 2);
  const LayerCost& linear = profile.sizes[0].layers[0];
  EXPECT_EQ(linear.name, "node2 Linear(in=4 -- out=8)");
  EXPECT_EQ(linear.forward_ns, 1.234e6);
  EXPECT_EQ(linear.backward_input_ns, 1.5e6);
  EXPECT_EQ(linear.backward_weight_ns, 1.5e6);
  EXPECT_EQ(linear.parameters, 40);
  EXPECT_EQ(linear.memory.parameter_bytes, 160);
  EXPECT_EQ(linear.memory.optimizer_bytes, 0);
  EXPECT_EQ(linear.memory.input_bytes, 100) << "of the Input";
  EXPECT_EQ(linear.memory.output_bytes, 12);
  EXPECT_EQ(linear.memory.input_last_use, LastUse::kBackwardWeight);
  EXPECT_EQ(linear.memory.output_last_use, LastUse::kBackwardInput);
  const LayerCost& relu = profile.sizes[0].layers[1];
  EXPECT_EQ(relu.name, "node10 ReLU(inplace)");
  EXPECT_EQ(relu.backward_input_ns, 3e6) << "no parameters";
  EXPECT_EQ(relu.memory.input_bytes, 12);
}

TEST(PipedreamProfile, ReadsAGraph) {
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      ParsePipedreamProfile(absl::StrCat(NodeLine(3), NodeLine(5), NodeLine(4), NodeLine(2),
                                         "\tnode3 -- node4\n\tnode2 -- node3\n\tnode2 -- node5\n"
                                         "\tnode4 -- node5\n"),
                            ""));
  EXPECT_THAT(profile.edges, ElementsAre(Edge{0, 1}, Edge{1, 2}, Edge{0, 3}, Edge{2, 3}));
  EXPECT_EQ(profile.sizes[0].layers[3].memory.input_bytes, 128);
}

TEST(PipedreamProfile, ReadsThePublishedProfiles) {
  struct Published {
    const char* name;
    int layers;
    int edges;
    double total_ms;
    int64_t parameter_bytes;
  };
  // Counts and sums of the files, computed separately (awk) without their Input.
  for (const Published& published : {Published{"vgg16", 40, 40, 672.535, 553430176},
                                     Published{"alexnet", 22, 22, 85.321, 244403360},
                                     Published{"resnet50", 176, 192, 443.419, 102228128}}) {
    SCOPED_TRACE(published.name);
    ASSERT_OK_AND_ASSIGN(const Profile profile,
                         ReadPipedreamProfile(PipedreamFile(published.name)));
    EXPECT_EQ(profile.model, published.name);
    EXPECT_EQ(profile.num_layers(), published.layers);
    EXPECT_EQ(static_cast<int>(profile.edges.size()), published.edges);
    double total_ns = 0;
    int64_t parameter_bytes = 0;
    for (const LayerCost& layer : profile.sizes[0].layers) {
      total_ns += layer.forward_ns + layer.backward_input_ns + layer.backward_weight_ns;
      parameter_bytes += layer.memory.parameter_bytes;
    }
    EXPECT_NEAR(total_ns / 1e6, published.total_ms, 1e-6);
    EXPECT_EQ(parameter_bytes, published.parameter_bytes);
  }
}

void ExpectNoGraph(const std::string& text, const std::string& message) {
  EXPECT_THAT(ParsePipedreamProfile(text, "net"), testing::IsRefused(StartsWith(message)));
}

TEST(PipedreamProfile, RefusesBadLines) {
  ExpectNoGraph("", "there is no node but Input");
  ExpectNoGraph(NodeLine(1, "Input"), "there is no node but Input");
  ExpectNoGraph(NodeLine(1) + "something\n", "2: \"something\": expected \"node1 -- name");
  ExpectNoGraph("x1 -- a -- b", "1: \"x1\": expected \"node\" and a number");
  ExpectNoGraph(NodeLine(1) + "\tnode1 -- node2 -- node3\n", "2: ");
  ExpectNoGraph(NodeLine(1) + "\tnode1 -- 2\n", "2: \"2\": expected \"node\"");
  ExpectNoGraph("node1 -- a -- forward_compute_time=1, backward=2",
                "1: \"backward=2\": expected \"backward_compute_time=\" and a number");
  ExpectNoGraph("node1 -- a -- forward_compute_time=1",
                "1: \"\": expected \"backward_compute_time=\"");
  ExpectNoGraph(NodeLine(1).substr(0, NodeLine(1).size() - 1) + ", more=1",
                "1: \"more=1\": expected nothing after parameter_size");
  ExpectNoGraph(std::string(100'000, 'x'), "1: longer than 65536 bytes");
}

TEST(PipedreamProfile, RefusesBadNumbers) {
  for (const std::string number : {"-1", "nan", "inf", "1e30", "", "1x", "17592186044417"}) {
    ExpectNoGraph(NodeLine(1) + NodeLine(2, "ReLU", number),
                  absl::StrCat("2: activation_size: \"", number,
                               "\": bytes must be a number from 0 to 17592186044416"));
  }
  ExpectNoGraph(NodeLine(1, "ReLU", "[1.0; x]"), "1: activation_size: \"x\"");
  ExpectNoGraph(NodeLine(1, "ReLU", "[1.0"),
                "1: activation_size: \"[1.0\": expected a list to end in ]");
  ExpectNoGraph(NodeLine(1, "ReLU", "[17592186044416; 1]"),
                "1: activation_size: the list sums to 17592186044417");
}

TEST(PipedreamProfile, RefusesBadGraphs) {
  const std::string nodes = absl::StrCat(NodeLine(1), NodeLine(2), NodeLine(3));
  ExpectNoGraph(nodes + NodeLine(2), "4: node2 is also on line 2");
  ExpectNoGraph(nodes + "\tnode1 -- node4\n", "4: there is no node4");
  ExpectNoGraph(nodes + "\tnode1 -- node2\n\tnode1 -- node2\n", "5: the edge is also on line 4");
  ExpectNoGraph(nodes, "there is no edge");
  ExpectNoGraph(nodes + "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node2\n", "3: ");
  EXPECT_THAT(ParsePipedreamProfile(nodes + "\tnode3 -- node2\n\tnode2 -- node3\n", ""),
              testing::IsRefused("is on a cycle"));
  ExpectNoGraph(NodeLine(7, "Input") + nodes + "\tnode1 -- node7\n", "5: an Input reads nothing");
}

// ---- Tables ----

constexpr absl::string_view kHeader = "layer,forward_ms,backward_ms,output_bytes,parameter_bytes\n";

TEST(CsvProfile, ReadsATable) {
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      ParseCsvProfile(absl::StrCat(kHeader, "linear0,1.5,3,100,160\n", "relu,0.25,0.5,100,0\n"),
                      "net"));
  EXPECT_EQ(profile.model, "net");
  EXPECT_TRUE(profile.is_chain());
  ASSERT_EQ(profile.num_layers(), 2);
  const LayerCost& linear = profile.sizes[0].layers[0];
  EXPECT_EQ(linear.name, "linear0");
  EXPECT_EQ(linear.forward_ns, 1.5e6);
  EXPECT_EQ(linear.backward_input_ns, 1.5e6);
  EXPECT_EQ(linear.backward_weight_ns, 1.5e6);
  EXPECT_EQ(linear.parameters, 40);
  EXPECT_EQ(linear.memory.parameter_bytes, 160);
  EXPECT_EQ(linear.memory.optimizer_bytes, 320);
  EXPECT_EQ(linear.memory.input_bytes, 0);
  EXPECT_EQ(linear.memory.output_bytes, 100);
  const LayerCost& relu = profile.sizes[0].layers[1];
  EXPECT_EQ(relu.backward_input_ns, 5e5);
  EXPECT_EQ(relu.backward_weight_ns, 0);
  EXPECT_EQ(relu.memory.input_bytes, 100);
}

std::vector<std::string> NamesIn(const std::string& text) {
  const absl::StatusOr<Profile> profile = ParseCsvProfile(text, "");
  EXPECT_OK(profile);
  std::vector<std::string> names;
  if (!profile.ok()) return names;
  for (const LayerCost& layer : profile->sizes[0].layers) names.push_back(layer.name);
  return names;
}

TEST(CsvProfile, ReadsWhateverRfc4180Allows) {
  EXPECT_THAT(NamesIn(absl::StrCat("\xEF\xBB\xBF", kHeader, "\"a, \"\"b\"\"\nc\",1,2,3,4\r\n\r\n",
                                   " d ,\"1\",2,3,4")),
              ElementsAre("a, \"b\"\nc", "d"));
  EXPECT_THAT(NamesIn("output_bytes,layer,parameter_bytes,backward_ms,forward_ms\r\n1,x,2,3,4\r\n"),
              ElementsAre("x"));
}

void ExpectNoTable(const std::string& text, const std::string& message) {
  EXPECT_THAT(ParseCsvProfile(text, "net"), testing::IsRefused(StartsWith(message)));
}

TEST(CsvProfile, RefusesBadHeaders) {
  ExpectNoTable("", "1:1: the column \"layer\" is missing");
  ExpectNoTable("layer,forward\n",
                "1:7: the column \"forward\" is not known; did you mean \"forward_ms\"?");
  ExpectNoTable("a,1,2,3,4\n", "1:1: the column \"a\" is not known; the columns are: layer,");
  ExpectNoTable("layer,layer\n", "1:7: the column \"layer\" is there twice");
  ExpectNoTable("layer,forward_ms,backward_ms,output_bytes\n",
                "1:1: the column \"parameter_bytes\" is missing");
}

TEST(CsvProfile, RefusesBadRows) {
  const auto refused = [](const std::string& row, const std::string& message) {
    ExpectNoTable(absl::StrCat(kHeader, "\"first\n\",1,2,3,4\n", row, "\n"), message);
  };
  refused("a,1,2,3", "4:1: the row has 4 fields, expected 5");
  refused("a,-1,2,3,4", "4:3: forward_ms: \"-1\": a time in ms must be a number from 0 to ");
  refused("a,1,nan,3,4", "4:5: backward_ms: \"nan\"");
  refused("a,1,2,1e14,4", "4:7: output_bytes: \"1e14\": bytes must be a number from 0 to ");
  refused("a,1,2,3,x", "4:9: parameter_bytes: \"x\"");
  refused("a,1,2,3,", "4:9: parameter_bytes: \"\"");
  refused(",1,2,3,4", "4:1: layer: must not be empty");
  refused("\"first\n\",1,2,3,4", "4:1: layer: \"first\" is also on line 2");
  refused("\"a,1,2,3,4", "4:1: this quote is never closed");
  refused("\"a\"b,1,2,3,4", "4:4: text after a closing quote");
  ExpectNoTable(std::string(kHeader), "there is no layer");
}

// Changing any byte yields a profile or an error.
TEST(ImportedProfiles, AnyByteMayBeWrong) {
  std::mt19937 random(1);
  const std::string csv = absl::StrCat(kHeader, "\"a\",1,2,3,4\nb,1,2,3,4\n");
  const std::string graph =
      absl::StrCat(NodeLine(1), NodeLine(2, "a", "[1; 2]"), "\tnode1 -- node2\n");
  for (int trial = 0; trial < 5000; ++trial) {
    for (std::string text : {csv, graph}) {
      for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
        text[random() % text.size()] = ",\"\n\r\t -;[]=.019node\xFF"[random() % 19];
      }
      for (const absl::StatusOr<Profile>& profile :
           {ParseCsvProfile(text, ""), ParsePipedreamProfile(text, "")}) {
        if (profile.ok()) {
          ASSERT_OK(CheckProfile(*profile));
        } else {
          ASSERT_FALSE(profile.status().message().empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
