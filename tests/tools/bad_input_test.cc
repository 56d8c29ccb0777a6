// Whatever is wrong with the input, the program prints one line that says so and exits with the
// status of that kind of error.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::IdxFile;
using engine::TestDirectory;
using engine::WriteTestFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Matcher;
using ::testing::StartsWith;

// A small network on small data, with `more` arguments.
Arguments SmallRun(const Arguments& more) {
  return Joined({"train", "--data", "synthetic:100x8x2", "--layers", "4", "--width", "8",
                 "--global-batch-size", "16", "--micro-batches", "4", "--epochs", "1"},
                more);
}

void ExpectFailure(const Arguments& arguments, int exit_status, const Matcher<std::string>& line) {
  const Finished run = RunStagecoach(arguments);
  EXPECT_EQ(run.exit_status, exit_status);
  EXPECT_THAT(run.out, IsEmpty());
  ExpectOneLine(run.err, AllOf(StartsWith("stagecoach"), line));
}

void ExpectBadData(const std::string& data, const Matcher<std::string>& line) {
  ExpectFailure({"train", "--data", data}, kStatusBadData, line);
}

// ---- Usage.

TEST(Usage, UnknownFlagNamesTheNearest) {
  ExpectFailure(SmallRun({"--stagse", "2"}), kStatusUsage,
                AllOf(StartsWith("stagecoach train: unknown argument \"--stagse\""),
                      HasSubstr("did you mean --stages?"), HasSubstr("stagecoach train --help")));
}

TEST(Usage, UnknownCommandNamesTheNearest) {
  ExpectFailure({"trian"}, kStatusUsage,
                AllOf(HasSubstr("\"trian\""), HasSubstr("did you mean train?")));
}

TEST(Usage, ACommandIsNeeded) {
  ExpectFailure(
      {}, kStatusUsage,
      HasSubstr("train, predict, generate, prepare, plan, profile, simulate, bench, trace, "
                "checkpoint, replay, launch, chaos, devices or help"));
}

TEST(Usage, CommandsDoNotCombine) {
  ExpectFailure({"devices", "plan"}, kStatusUsage, HasSubstr("plan"));
}

TEST(Usage, BadNumbersSayWhatIsExpected) {
  for (const char* value : {"4x", "0", "-1", "", "1e9", "99999999999999999999"}) {
    ExpectFailure(SmallRun({"--stages", value}), kStatusUsage,
                  AllOf(StartsWith("stagecoach train: --devices: "),
                        HasSubstr(absl::StrCat("\"", value, "\"")), HasSubstr("from 1 to ")));
  }
}

TEST(Usage, EveryCountRefusesLetters) {
  for (const char* flag : {"--layers",        "--width",
                           "--devices",       "--global-batch-size",
                           "--micro-batches", "--threads-per-device",
                           "--train-samples", "--epochs",
                           "--seed",          "--timeout",
                           "--learning-rate", "--warmup-steps",
                           "--min-lr",        "--clip-norm",
                           "--weight-decay",  "--momentum",
                           "--beta1",         "--beta2",
                           "--steps",         "--eval-every",
                           "--eval-rows",     "--log-every"}) {
    ExpectFailure({"train", flag, "7x"}, kStatusUsage, HasSubstr(absl::StrCat(flag, ": \"7x\"")));
  }
}

TEST(Usage, MissingValue) {
  ExpectFailure(SmallRun({"--stages"}), kStatusUsage, HasSubstr("--devices: a value is missing"));
}

TEST(Usage, UnknownNamesListTheKnownOnes) {
  ExpectFailure(SmallRun({"--schedule", "1f1v"}), kStatusUsage,
                AllOf(HasSubstr("gpipe, 1f1b"), HasSubstr("did you mean 1f1b?")));
  ExpectFailure(SmallRun({"--optimizer", "adam"}), kStatusUsage, HasSubstr("did you mean adamw?"));
}

TEST(Usage, BadMemorySizeListsUnits) {
  ExpectFailure(SmallRun({"--device-memory", "600QB"}), kStatusUsage, HasSubstr("MB, GB"));
}

TEST(Usage, ModelFileExcludesTheDefaultNetworksShape) {
  ExpectFailure(SmallRun({"--model", "m.toml"}), kStatusUsage, HasSubstr("--model"));
}

TEST(Usage, AModelHasAName) {
  ExpectFailure({"train", "--model", "", "--data", "synthetic:100x8x2"}, kStatusUsage,
                HasSubstr("--model: expected a name, or a .toml file"));
}

TEST(Usage, MomentumIsForSgd) {
  ExpectFailure(SmallRun({"--momentum", "0.5"}), kStatusUsage, HasSubstr("--optimizer sgd"));
}

TEST(Usage, BetasAreForAdamW) {
  for (const char* flag : {"--beta1", "--beta2"}) {
    ExpectFailure(SmallRun({"--optimizer", "sgd", flag, "0.5"}), kStatusUsage,
                  AllOf(HasSubstr(flag), HasSubstr("--optimizer adamw")));
    ExpectFailure(SmallRun({flag, "1"}), kStatusUsage, HasSubstr("must be in [0, 1)"));
  }
}

TEST(Usage, AWarmUpAndAMinimumAreWithinTheScheduleThatHasThem) {
  for (const char* flag : {"--warmup-steps", "--min-lr"}) {
    ExpectFailure(SmallRun({"--lr-schedule", "constant", flag, "0"}), kStatusUsage,
                  HasSubstr(absl::StrCat(flag, " is for --lr-schedule warmup-cosine")));
    ExpectFailure(SmallRun({flag, "-1"}), kStatusUsage, HasSubstr(flag));
  }
  ExpectFailure(SmallRun({"--warmup-steps", "9999"}), kStatusUsage,
                HasSubstr("--warmup-steps is 9999, but the run has "));
  ExpectFailure(SmallRun({"--learning-rate", "1e-3", "--min-lr", "2e-3"}), kStatusUsage,
                HasSubstr("--min-lr is 0.002, above the rate that the warm-up ends with, 0.001"));
}

TEST(Usage, AModelOfTokensIsToldToHaveData) {
  ExpectFailure({"train", "--model", "gpt2:blocks=1,width=8,heads=2"}, kStatusUsage,
                HasSubstr("is a model of tokens: name a text, or a file of ids, with --data FILE"));
  ExpectFailure({"train", "--context", "8"}, kStatusUsage,
                AllOf(HasSubstr("--context"), HasSubstr("name them with --data FILE")));
}

TEST(Usage, MalformedSyntheticData) {
  ExpectFailure({"plan", "--data", "synthetic:100x8"}, kStatusUsage,
                AllOf(StartsWith("stagecoach plan: --data"), HasSubstr("100x8")));
}

TEST(Usage, OnlyTokensHaveAContextAndAVocabulary) {
  for (const char* flag : {"--context", "--vocabulary"}) {
    ExpectFailure(SmallRun({flag, "8"}), kStatusUsage,
                  HasSubstr(absl::StrCat(flag,
                                         " is for text and ids of tokens, which "
                                         "synthetic:100x8x2 does not hold")));
  }
}

// ---- Data.

TEST(BadData, MissingDirectory) {
  ExpectBadData("/no/such/place", HasSubstr("/no/such/place: no such file or directory"));
}

TEST(BadData, DirectoryOfOtherFiles) {
  ExpectBadData(TestDirectory(), HasSubstr("expected a directory of IDX"));
}

// Returns a directory of two training images and one test image of 2 x 2 pixels. Tests replace a
// file in it.
std::string SmallImages() {
  const std::string directory = TestDirectory();
  WriteTestFile(directory, "train-images-idx3-ubyte", IdxFile({2, 2, 2}, "12345678"));
  WriteTestFile(directory, "train-labels-idx1-ubyte", IdxFile({2}, std::string("\0\1", 2)));
  WriteTestFile(directory, "t10k-images-idx3-ubyte", IdxFile({1, 2, 2}, "1234"));
  WriteTestFile(directory, "t10k-labels-idx1-ubyte", IdxFile({1}, std::string(1, '\1')));
  return directory;
}

TEST(BadData, TextThatIsNone) {
  const std::string path = WriteTestFile(TestDirectory(), "a.txt", "abc\xFF");
  ExpectBadData(path, HasSubstr("a.txt: the byte 0xff at offset 3 is not UTF-8"));
}

// A plan reads no text, but its tokenizer says how many tokens there are.
TEST(BadData, MissingTokenizer) {
  ExpectFailure({"plan", "--model", "gpt2:blocks=1,width=8,heads=2", "--tokenizer", "/no/such"},
                kStatusBadData, HasSubstr("/no/such"));
}

TEST(BadData, TooFewTokensForTheContext) {
  const std::string directory = TestDirectory();
  const std::string text = WriteTestFile(directory, "a.txt", std::string(100, 'x'));
  ExpectBadData(text, HasSubstr("training set: 90 tokens, expected at least 257 for a context of "
                                "256"));
  const std::string model = WriteTestFile(
      directory, "m.toml", "context = 50\n[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n");
  ExpectFailure({"train", "--data", text, "--model", model}, kStatusBadData,
                HasSubstr("test set: 10 tokens, expected at least 51 for a context of 50"));
  ExpectFailure({"train", "--data", text, "--model", model, "--context", "10"}, kStatusBadData,
                HasSubstr("for a context of 10"));
}

TEST(BadData, TruncatedImages) {
  const std::string directory = SmallImages();
  const std::string path =
      WriteTestFile(directory, "train-images-idx3-ubyte", IdxFile({2, 2, 2}, "1234567"));
  ExpectBadData(directory, AllOf(HasSubstr(path), HasSubstr("truncated")));
}

TEST(BadData, WrongMagic) {
  const std::string directory = SmallImages();
  const std::string path = WriteTestFile(directory, "t10k-labels-idx1-ubyte", "GIF89a etc.");
  ExpectBadData(directory, AllOf(HasSubstr(path), HasSubstr("not an IDX file")));
}

TEST(BadData, OversizedImages) {
  const std::string directory = SmallImages();
  const std::string path =
      WriteTestFile(directory, "train-images-idx3-ubyte", IdxFile({4'000'000'000, 28, 28}, "1234"));
  ExpectBadData(directory, AllOf(HasSubstr(path), HasSubstr("limit")));
}

TEST(BadData, LabelOutOfRange) {
  const std::string directory = SmallImages();
  WriteTestFile(directory, "t10k-labels-idx1-ubyte", IdxFile({1}, std::string(1, '\7')));
  ExpectBadData(directory, AllOf(HasSubstr("label of row 0 is 7"), HasSubstr("test set")));
}

TEST(BadData, RaggedTable) {
  const std::string path =
      WriteTestFile(TestDirectory(), "t.csv", "a,b,label\n1,2,0\n3,4,1\n5,6\n");
  ExpectBadData(path, HasSubstr(absl::StrCat(path, ":4")));
}

TEST(BadData, MissingLabelColumn) {
  const std::string path = WriteTestFile(TestDirectory(), "t.csv", "a,b,label\n1,2,0\n3,4,1\n");
  ExpectFailure({"train", "--data", path, "--label", "labels"}, kStatusBadData,
                AllOf(HasSubstr(path), HasSubstr("labels")));
}

TEST(BadData, MoreRowsThanThereAre) {
  ExpectFailure(SmallRun({"--train-samples", "101"}), kStatusBadData, HasSubstr("101"));
}

// ---- Configuration.

TEST(BadConfiguration, ModelsThatTakeNumbersDoNotTakeTokens) {
  const std::string directory = TestDirectory();
  const std::string text = WriteTestFile(directory, "a.txt", std::string(100, 'x'));
  const std::string model =
      WriteTestFile(directory, "m.toml", "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n");
  const Arguments run = {"train", "--data",   text, "--context", "9", "--global-batch-size",
                         "4",     "--stages", "1"};
  ExpectFailure(run, kStatusBadConfiguration, HasSubstr("the default network takes numbers"));
  ExpectFailure(Joined(run, {"--model", model}), kStatusBadConfiguration,
                HasSubstr("linear 9 -> 256 takes numbers, but is given ids"));
}

TEST(BadConfiguration, MoreStagesThanLayers) {
  ExpectFailure(SmallRun({"--stages", "5"}), kStatusBadConfiguration,
                HasSubstr("cannot cut 4 layers into 5 stages"));
}

TEST(BadConfiguration, BatchNotDivisibleNamesTheNearestThatIs) {
  ExpectFailure(SmallRun({"--global-batch-size", "18"}), kStatusBadConfiguration,
                AllOf(HasSubstr("18 rows"), HasSubstr("4 equal micro-batches"),
                      HasSubstr("use --global-batch-size 16")));
  ExpectFailure(SmallRun({"--global-batch-size", "19"}), kStatusBadConfiguration,
                HasSubstr("use --global-batch-size 20"));
  ExpectFailure(SmallRun({"--global-batch-size", "1"}), kStatusBadConfiguration,
                HasSubstr("use --global-batch-size 4"));
}

TEST(Usage, NoMicroBatches) {
  for (const char* count : {"0", "-3"}) {
    ExpectFailure(SmallRun({"--micro-batches", count}), kStatusUsage,
                  HasSubstr(absl::StrCat("--micro-batches is ", count, ", expected at least 1")));
  }
}

TEST(BadConfiguration, LessThanABatchOfRows) {
  ExpectFailure(SmallRun({"--train-samples", "15"}), kStatusBadConfiguration,
                AllOf(HasSubstr("15 rows"), HasSubstr("one batch of 16")));
}

TEST(BadData, UnknownLayerInModelFile) {
  const std::string path =
      WriteTestFile(TestDirectory(), "m.toml", "[[layer]]\ntype = \"liner\"\n");
  ExpectFailure({"train", "--data", "synthetic:100x8x2", "--model", path}, kStatusBadData,
                AllOf(HasSubstr(absl::StrCat(path, ":2:1: $.layer[0].type")),
                      HasSubstr("did you mean \"linear\"?")));
}

TEST(BadData, MissingModelFile) {
  ExpectFailure({"train", "--data", "synthetic:100x8x2", "--model", "/no/such.toml"},
                kStatusBadData, HasSubstr("/no/such.toml"));
}

TEST(BadConfiguration, ModelThatDoesNotFitGetsATableAfterTheLine) {
  // The parameters of one layer alone exceed this, whatever scratch memory this CPU's products
  // need.
  const Finished run = RunStagecoach(SmallRun({"--stages", "1", "--device-memory", "1kB"}));
  EXPECT_EQ(run.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err,
              AllOf(StartsWith("stagecoach train: the model does not fit: stage 0"),
                    HasSubstr("device memory is 1.0 kB"), HasSubstr("no number of stages fits"),
                    HasSubstr("\ndevice stage layers")));
}

}  // namespace
}  // namespace stagecoach::tools
