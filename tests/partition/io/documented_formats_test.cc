// Checks that the readers accept what docs/planner.md shows.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/io/cluster_file.h"
#include "partition/io/csv_profile.h"
#include "partition/io/pipedream_profile.h"
#include "partition/io/profile_file.h"
#include "partition/io/transformer_file.h"
#include "partition/io/transformer_profile.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

// Returns the fenced examples of that language.
std::vector<std::string> Examples(const std::string& language) {
  const absl::StatusOr<std::string> document =
      base::ReadFile(absl::StrCat(STAGECOACH_DOCS, "/planner.md"), 1 << 20);
  EXPECT_OK(document);
  std::vector<std::string> examples;
  bool is_inside = false;
  for (const absl::string_view line : absl::StrSplit(document.value_or(""), '\n')) {
    if (is_inside && line == "```") {
      is_inside = false;
    } else if (is_inside) {
      absl::StrAppend(&examples.back(), line, "\n");
    } else if (line == absl::StrCat("```", language)) {
      is_inside = true;
      examples.emplace_back();
    }
  }
  return examples;
}

TEST(DocumentedFormats, Profile) {
  const std::vector<std::string> examples = Examples("profile");
  ASSERT_EQ(examples.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const Profile chain, ParseProfileJson(examples[0]));
  EXPECT_EQ(chain.num_layers(), 3);
  EXPECT_TRUE(chain.is_chain());
  ASSERT_OK_AND_ASSIGN(const Profile graph, ParseProfileJson(examples[1]));
  EXPECT_EQ(graph.edges.size(), 3u);
}

TEST(DocumentedFormats, Table) {
  const std::vector<std::string> examples = Examples("csv");
  ASSERT_EQ(examples.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const Profile profile, ParseCsvProfile(examples[0], ""));
  EXPECT_EQ(profile.sizes[0].layers[0].name, "conv1, relu");
}

TEST(DocumentedFormats, PipedreamsGraph) {
  const std::vector<std::string> examples = Examples("pipedream");
  ASSERT_EQ(examples.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const Profile profile, ParsePipedreamProfile(examples[0], ""));
  EXPECT_EQ(profile.sizes[0].layers[0].name, "node2 Conv2d(3, 64, kernel_size=(3, 3))");
}

TEST(DocumentedFormats, Transformer) {
  const std::vector<std::string> examples = Examples("transformer");
  ASSERT_EQ(examples.size(), 4u);
  ASSERT_OK_AND_ASSIGN(const TransformerDescription one, ParseTransformer(examples[0]));
  EXPECT_EQ(TransformerProfile(one.transformer, "").num_layers(), 98);
  ASSERT_OK_AND_ASSIGN(const TransformerDescription open, ParseTransformer(examples[1]));
  EXPECT_EQ(open.attentions.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const TransformerDescription mixtral, ParseTransformer(examples[2]));
  EXPECT_EQ(Parameters(mixtral.transformer), 46'702'792'704);
  const std::string folder = ::testing::TempDir();
  ASSERT_OK(base::WriteFileAtomically(absl::StrCat(folder, "/config.json"), examples[2]));
  ASSERT_OK_AND_ASSIGN(const TransformerDescription trained, ParseTransformer(examples[3], folder));
  EXPECT_EQ(trained.transformer.experts, 8);
  EXPECT_EQ(trained.transformer.sequence, 4096);
}

TEST(DocumentedFormats, Cluster) {
  const std::vector<std::string> examples = Examples("cluster");
  ASSERT_EQ(examples.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const Cluster hosts, ParseClusterToml(examples[0]));
  EXPECT_EQ(hosts.size(), 16);
  ASSERT_OK_AND_ASSIGN(const Cluster cluster, ParseClusterToml(examples[1]));
  EXPECT_EQ(cluster.size(), 17);
  EXPECT_EQ(cluster.LinkBetween(15, 16).latency_ns, 50'000);
}

}  // namespace
}  // namespace stagecoach::partition
