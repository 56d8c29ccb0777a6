#include "tests/tools/cli_files/cli_file.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/tools/cli_files/cli_json.h"

namespace stagecoach::tools {
namespace {

using stagecoach::testing::IsOk;
using stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns the cases as lines: "Name", "key|text|block".
std::vector<std::string> Parsed(const std::string& text) {
  std::vector<std::string> lines;
  const std::vector<CliCase> cases = ParseCliFile(text, {{"given", "G"}}).value();
  for (const CliCase& test : cases) {
    lines.push_back(test.name);
    for (const CliStep& step : test.steps) {
      lines.push_back(step.key + "|" + step.text + "|" + step.block);
    }
  }
  return lines;
}

TEST(CliFile, HasCasesWithNamesReplaced) {
  EXPECT_THAT(
      Parsed("let a = train $given\n"
             "before\n  file x\n    1\n      2\n"
             "# A comment.\n"
             "case One\nrun b => exit 2: c\nrun $a \\\n  --json\nkeep hash = end\nout: $hash\n"
             "case Two\nfor b in 1 \"\"\n  run $a-$b\n  no out: x\n"),
      ElementsAre("One", "file|x|1\n  2\n", "run|b|", "exit|2: c|", "run|train G --json|",
                  "keep|hash = end|", "out:|$hash|", "Two", "file|x|1\n  2\n", "run|train G-1|",
                  "no out:|x|", "run|train G-|", "no out:|x|"));
}

TEST(CliFile, IsRefusedWithTheLineThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"run train\n", "1: expected a case before this"},
      {"case A\nrun a\nexti 2\n", "3: unknown key \"exti\""},
      {"case A\nrun a\nexit 2\ncase A\n", "4: there is another case A"},
      {"case A B\n", "1: the name of a case has letters and digits only"},
      {"case A\nrun a\n", "1: A expects nothing at its end"},
      {"case A\nexit 0\n", "2: expected a command before this"},
      {"case A\nremove a\n", "1: A expects nothing at its end"},
      {"case A\nrun a\nexit 0\ncase B\nrun b\n", "4: B expects nothing"},
      {"case A\nrun $b\nexit 0\n", "2: nothing defines $b"},
      {"case A\nrun a\n  b\nexit 0\n", "3: \"run\" has no indented lines"},
      {"# A\n  b\n", "2: nothing is above this indented line"},
      {"let given = a\n", "1: there is another $given"},
      {"let a b\n", "1: expected: let name = ..."},
      {"case A\nfor a of b\n  run $a\nexit 0\n", "2: expected: for name in ..."},
      {"case A\nfor a in \"b\n  run $a\nexit 0\n", "2: a quote has no end"}};
  for (const auto& [text, message] : refused) {
    EXPECT_THAT(ParseCliFile(text, {{"given", "G"}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << text;
  }
}

TEST(CliFile, HasCommandLinesAsInAShell) {
  EXPECT_THAT(*SplitWords("a  b=\"c d\" \"\" \"\\\"\\n\""), ElementsAre("a", "b=c d", "", "\"\n"));
}

TEST(CliJson, FindsValuesAndComparesThem) {
  const nlohmann::json document =
      CliDocument(
          "{\"event\": \"epoch\", \"loss\": 2, \"ranks\": [{\"ms\": 1}, {\"ms\": 3}]}\n"
          "{\"event\": \"epoch\", \"loss\": 1.5, \"name\": \"x\"}\n")
          .value();
  for (const char* holds :
       {"epoch.size = 2", "epoch.loss = 1.5", "epoch[0].loss = 2.0", "epoch[*].loss = [2, 1.5]",
        "epoch[*].loss > 1", "epoch[-1].loss < epoch[0].loss", "epoch[0].ranks[*].ms = [1, 3]",
        "end.loss absent", "epoch.name = \"x\"", "epoch[*].loss != [2, 1]",
        "epoch.{loss,name} = [1.5, \"x\"]", "epoch.size = 2 and epoch.loss = 1.5"}) {
    EXPECT_OK(CheckCliJson(document, holds));
  }
  for (const char* fails :
       {"epoch.size = 3", "epoch.loss != 1.5", "epoch[*].loss > 1.5", "epoch[2].loss = 2",
        "epoch[*].name = \"x\"", "end.loss = 1", "epoch.loss absent", "epoch.loss = \"1.5\"",
        "epoch.loss == 1.5", "epoch.size = 2 and epoch.loss = 1", "epoch.name < 1"}) {
    EXPECT_THAT(CheckCliJson(document, fails), Not(IsOk())) << fails;
  }
  EXPECT_THAT(CliDocument("{}\n{}\n"), Not(IsOk()));
  EXPECT_THAT(CliDocument("text\n"), Not(IsOk()));
}

}  // namespace
}  // namespace stagecoach::tools
