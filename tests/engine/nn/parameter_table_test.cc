#include "engine/nn/parameter_table.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/random_streams.h"
#include "engine/models/model.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ParameterTable TableOf(const Model& model) { return AnalyzeModel(model, {}).value().parameters; }

// Returns a table of four layers; layer 1 has no parameters.
ParameterTable SmallTable() {
  ParameterTable table;
  table.Add(0, {ParameterSpec{.name = "weight", .shape = Shape{3, 4}, .init = Init::Normal(0, 1)},
                ParameterSpec{.name = "bias", .shape = Shape{4}, .decays = false}});
  table.Add(1, {});
  table.Add(2, {ParameterSpec{.name = "scale", .shape = Shape{4}, .init = Init::Constant(1)}});
  table.Add(3, {ParameterSpec{.name = "weight", .shape = Shape{4, 2}}});
  return table;
}

std::vector<std::string> NamesOf(absl::Span<const ModelParameter> parameters) {
  std::vector<std::string> names;
  for (const ModelParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

// Returns the parameters of a layer with `count` of them.
std::vector<ParameterSpec> Parameters(int count) {
  return std::vector<ParameterSpec>(static_cast<size_t>(count),
                                    {.name = "p", .shape = Shape{1}, .init = Init::Normal(0, 1)});
}

std::vector<uint64_t> StreamsOf(const ParameterTable& table) {
  std::vector<uint64_t> streams;
  for (const ModelParameter& parameter : table.all()) streams.push_back(parameter.random_stream);
  return streams;
}

TEST(ParameterTable, HoldsWhatLayersDeclareInTheOrderOfTheModel) {
  const ParameterTable table = SmallTable();
  EXPECT_THAT(table.all(), ElementsAre(ModelParameter{.id = ParameterId(0),
                                                      .layer = 0,
                                                      .name = "layer 0: weight",
                                                      .shape = Shape{3, 4},
                                                      .init = Init::Normal(0, 1),
                                                      .random_stream = 0},
                                       ModelParameter{.id = ParameterId(1),
                                                      .layer = 0,
                                                      .name = "layer 0: bias",
                                                      .shape = Shape{4},
                                                      .random_stream = 1,
                                                      .decays = false,
                                                      .first_piece = 1},
                                       ModelParameter{.id = ParameterId(2),
                                                      .layer = 2,
                                                      .name = "layer 2: scale",
                                                      .shape = Shape{4},
                                                      .init = Init::Constant(1),
                                                      .random_stream = 2048,
                                                      .first_piece = 2},
                                       ModelParameter{.id = ParameterId(3),
                                                      .layer = 3,
                                                      .name = "layer 3: weight",
                                                      .shape = Shape{4, 2},
                                                      .random_stream = 3072,
                                                      .first_piece = 3}));
}

TEST(ParameterTable, CountsThePiecesOfWhatIsCut) {
  EXPECT_EQ(ParameterTable().pieces(), 0);
  ParameterTable table;
  const BlockOrder four = {.blocks = 4, .axis = 0, .extents = {8}};
  const BlockOrder only_first = {.blocks = 4, .axis = BlockOrder::kOnlyFirst, .extents = {}};
  table.Add(0, {ParameterSpec{.name = "cut", .shape = Shape{8}, .blocks = four},
                ParameterSpec{.name = "bias", .shape = Shape{8}, .blocks = only_first},
                ParameterSpec{.name = "whole", .shape = Shape{8}}});
  std::vector<int> first, pieces;
  for (const ModelParameter& parameter : table.all()) {
    first.push_back(parameter.first_piece);
    pieces.push_back(parameter.pieces());
  }
  EXPECT_THAT(first, ElementsAre(0, 4, 5));
  EXPECT_THAT(pieces, ElementsAre(4, 1, 1));
  EXPECT_EQ(table.pieces(), 6);
}

TEST(ParameterTable, TiesWhatIsCutAlike) {
  ParameterTable table;
  const BlockOrder two = {.blocks = 2, .axis = 0, .extents = {8}};
  table.Add(0, {ParameterSpec{.name = "cut", .shape = Shape{8}, .blocks = two}});
  table.Add(1, {ParameterSpec{.name = "whole", .shape = Shape{8}},
                ParameterSpec{.name = "cut", .shape = Shape{8}, .blocks = two}});
  EXPECT_THAT(table.Tie({{0, "cut"}, {1, "whole"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("they are not cut into the same blocks")));
  EXPECT_OK(table.Tie({{0, "cut"}, {1, "cut"}}));
}

TEST(ParameterTable, GivesTheParametersOfAnyRangeOfLayers) {
  const ParameterTable table = SmallTable();
  EXPECT_THAT(NamesOf(table.OfLayers(0, 1)), ElementsAre("layer 0: weight", "layer 0: bias"));
  EXPECT_THAT(table.OfLayers(1, 1), IsEmpty());
  EXPECT_THAT(NamesOf(table.OfLayers(1, 3)), ElementsAre("layer 2: scale", "layer 3: weight"));
}

TEST(ParameterTable, FindsAParameterByItsName) {
  const ParameterTable table = SmallTable();
  ASSERT_OK_AND_ASSIGN(const ParameterId id, table.Find("layer 2: scale"));
  EXPECT_EQ(table[id].layer, 2);
}

TEST(ParameterTable, ListsTheNamesIfThereIsNoneLikeIt) {
  EXPECT_THAT(SmallTable().Find("layer 1: weight"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("\"layer 1: weight\""),
                             HasSubstr("layer 0: weight, layer 0: bias, layer 2: scale"))));
}

TEST(ParameterTable, DependsOnTheModelAlone) {
  const Model model = {.input = Shape{5}, .layers = {Linear(7), LayerNorm(), Linear(3)}};
  ASSERT_OK_AND_ASSIGN(const ModelProfile small, AnalyzeModel(model, {.micro_batch_rows = 1}));
  ASSERT_OK_AND_ASSIGN(const ModelProfile large, AnalyzeModel(model, {.micro_batch_rows = 64}));
  EXPECT_EQ(small.parameters, large.parameters);
  EXPECT_EQ(small.parameters.size(), 6);
}

// Each layer has two parameters: the last would otherwise have the numbers of the next layer's
// weight.
TEST(ParameterStreams, OfABlockOf513LinearLayersAreNotThoseOfTheLayerBehindIt) {
  const Model model = {
      .input = Shape{1},
      .layers = {Residual(std::vector<LayerFactory>(513, Linear(1))), Linear(2), Linear(1)}};
  const std::vector<uint64_t> streams = StreamsOf(TableOf(model));
  ASSERT_EQ(streams.size(), 2 * 513 + 4);
  EXPECT_EQ(std::set<uint64_t>(streams.begin(), streams.end()).size(), streams.size());
}

TEST(ParameterStreams, AreAllDifferentHoweverManyParametersLayersHave) {
  ParameterTable table;
  for (const int layer : {0, 1, 2, 3, 1000, 1 << 30}) table.Add(layer, Parameters(3000));
  const std::vector<uint64_t> streams = StreamsOf(table);
  EXPECT_EQ(std::set<uint64_t>(streams.begin(), streams.end()).size(), streams.size());
}

TEST(ParameterStreams, AreNoStreamsOfData) {
  ParameterTable table;
  for (const int layer : {0, INT32_MAX}) table.Add(layer, Parameters(3000));
  const auto folder = [](uint64_t stream) { return stream >> 48; };
  for (const uint64_t stream : StreamsOf(table)) {
    ASSERT_NE(folder(stream), folder(StreamId(DataStream::kEpochOrder)));
  }
}

// Results of earlier versions depend on these numbers.
TEST(ParameterStreams, OfTheFirst1024ParametersOfALayerStayWhatTheyAre) {
  ParameterTable table;
  for (const int layer : {0, 7}) table.Add(layer, Parameters(1024));
  const std::vector<uint64_t> streams = StreamsOf(table);
  for (uint64_t i = 0; i < 1024; ++i) {
    ASSERT_EQ(streams[i], i);
    ASSERT_EQ(streams[1024 + i], 7 * 1024 + i);
  }
}

}  // namespace
}  // namespace stagecoach::engine
