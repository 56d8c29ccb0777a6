#include "engine/nn/parameter_rules.h"

#include <string>
#include <vector>

#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns a model whose first and last matrices are tied.
Model RuledModel(const std::string& rules) {
  Model model = {.input = Shape{6},
                 .layers = {Linear(6), Residual({LayerNorm(), Linear(6)}, {Linear(6)}), Linear(6)},
                 .ties = {{{0, "weight"}, {2, "weight"}}}};
  model.parameter_rules = ParseParameterRules(rules).value();
  return model;
}

absl::StatusOr<ParameterTable> TableOf(const std::string& rules) {
  ASSIGN_OR_RETURN(ModelProfile profile, AnalyzeModel(RuledModel(rules), {}));
  return profile.parameters;
}

const ModelParameter& Named(const ParameterTable& table, const char* name) {
  return table[table.Find(name).value()];
}

TEST(ParameterRules, AreReadAndWrittenAlike) {
  EXPECT_THAT(
      ParseParameterRules("layer 0: *:frozen;*bias:lr-factor=0.5,weight-decay=0").value(),
      ElementsAre(ParameterRule{.pattern = "layer 0: *", .is_frozen = true},
                  ParameterRule{.pattern = "*bias", .rate_factor = 0.5F, .weight_decay = 0.0F}));
  for (const char* const text :
       {"layer 0: *:frozen", "*:lr-factor=1", "*:weight-decay=0.25", "a:lr-factor=2;b:frozen",
        "[ab]?:lr-factor=0.1,weight-decay=1e-05"}) {
    EXPECT_EQ(ParameterRulesText(ParseParameterRules(text).value()), text);
  }
}

TEST(ParameterRules, RefuseWhatTheyDoNotKnow) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"", "expected PATTERN:lr-factor=X"},
      {"*bias", "expected PATTERN:lr-factor=X"},
      {":frozen", "expected PATTERN:lr-factor=X"},
      {"*bias:", "is none of lr-factor=X, weight-decay=Y and frozen"},
      {"*bias:lr=2", "\"lr=2\" is none of"},
      {"*bias:lr-factor=-1", "lr-factor is \"-1\", expected a number of 0 or more"},
      {"*bias:weight-decay=x", "weight-decay is \"x\", expected a number of 0 or more"},
      {"*bias:lr-factor=inf", "expected a number"},
      {"*bias:frozen,lr-factor=2", "frozen parameters have neither lr-factor nor weight-decay"},
      {"*bias:frozen;", "\"\": expected"},
  };
  for (const auto& [text, message] : kCases) {
    EXPECT_THAT(ParseParameterRules(text), IsRefused(message)) << text;
  }
}

TEST(ParameterRules, AreOfTheParametersWhoseNamesMatchTheLastOfThem) {
  ASSERT_OK_AND_ASSIGN(const ParameterTable table,
                       TableOf("layer 1: *:frozen;*shortcut*:lr-factor=2;*bias:weight-decay=0.5"));
  EXPECT_TRUE(Named(table, "layer 1: 1.weight").update.is_frozen());
  const ModelParameter& shortcut = Named(table, "layer 1: shortcut.0.weight");
  EXPECT_FALSE(shortcut.update.is_frozen());
  EXPECT_EQ(shortcut.update.rate_factor, 2.0F);
  // A rule is taken as a whole, and a bias decays if it says so.
  const ModelParameter& bias = Named(table, "layer 1: shortcut.0.bias");
  EXPECT_EQ(bias.update.rate_factor, 1.0F);
  EXPECT_EQ(bias.update.weight_decay, 0.5F);
  EXPECT_TRUE(bias.decays);
  EXPECT_FALSE(Named(table, "layer 1: 1.bias").update.is_frozen());
  EXPECT_EQ(Named(table, "layer 0: weight").update, UpdateRule());
}

TEST(ParameterRules, AreOfBothSidesOfATie) {
  for (const char* const name : {"layer 0: weight", "layer 2: weight"}) {
    ASSERT_OK_AND_ASSIGN(const ParameterTable frozen, TableOf(absl::StrCat(name, ":frozen")));
    EXPECT_TRUE(Named(frozen, "layer 0: weight").update.is_frozen()) << name;
    EXPECT_TRUE(Named(frozen, "layer 2: weight").update.is_frozen()) << name;
  }
  // The later rule is that of the pair.
  ASSERT_OK_AND_ASSIGN(const ParameterTable table,
                       TableOf("layer 0: *:lr-factor=3;layer 2: weight:lr-factor=5"));
  EXPECT_EQ(Named(table, "layer 0: weight").update.rate_factor, 5.0F);
  EXPECT_EQ(Named(table, "layer 2: weight").update.rate_factor, 5.0F);
  EXPECT_EQ(Named(table, "layer 0: bias").update.rate_factor, 3.0F);
  const std::vector<ParameterTie> ties = {{{0, "weight"}, {2, "weight"}}};
  const auto rules = ParseParameterRules("layer [02]: *:frozen").value();
  EXPECT_THAT(ParameterRules(rules, ties).CountsIn(table), ElementsAre(3));
}

TEST(ParameterRules, AreRefusedIfTheyChangeNothing) {
  EXPECT_THAT(TableOf("layer 0: weigth:frozen"),
              IsRefused("the group of parameters \"layer 0: weigth\": no parameter has such a "
                        "name; did you mean \"layer 0: weight\"?"));
  EXPECT_THAT(TableOf("*head*:frozen"), IsRefused("there are \"layer 0: weight\""));
  EXPECT_THAT(TableOf("*head*:frozen"), IsRefused("more"));
  EXPECT_THAT(TableOf("layer 2: bias:frozen;*bias:lr-factor=2"),
              IsRefused("\"layer 2: bias\": later groups have all its parameters"));
  Model model = RuledModel("*weight:lr-factor=2");
  model.is_frozen = true;
  EXPECT_THAT(AnalyzeModel(model, {}), IsRefused("no optimizer updates its parameters"));
}

}  // namespace
}  // namespace stagecoach::engine
