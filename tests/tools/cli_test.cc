// Runs the command-line tests in tests/tools/cli: every case of train.cli is a test Cli/train.Name.
//
//   let small = train --data synthetic:100x8x2 --layers 4 --epochs 1
//
//   case RefusesBadNumbersOfStages
//   for value in 4x 0 ""
//     run $small --stages "$value" => exit 2: --devices: "$value" ... from 1 to
//
//   case GoesOnWithTheSameBits
//   run $small --json --checkpoint run
//   keep hash = end.parameters_hash
//   remove run/step-00000003
//   run train --json --checkpoint run --resume
//   err:
//   json end.parameters_hash = $hash and end.steps = 3
//
// Lines that begin with # are comments. A line that ends with a backslash continues in the next
// one. A file has:
//
//   let NAME = TEXT      From here on $NAME is that text. Every file has the folders $tokenizers,
//                        $transformers, $images, $lora, $quantized and $profiles of
//                        fixtures.
//   before               The indented lines are the first of every case from here on.
//   case NAME            The lines of the case follow.
//
// They are carried out in order, in an empty folder, which relative paths are relative to:
//
//   for NAME in WORDS    Repeats the indented lines with $NAME as each of the words.
//   run ARGUMENTS        Runs the program. Before the arguments may be VARIABLE=VALUE, and after
//                        them redirections of its streams: < FILE, > FILE, >> FILE, 2> FILE.
//   keep NAME = PATH     From here on $NAME is a value of the JSON on stdout.
//   file FILE            Writes the indented lines. "file FILE * 3" writes them three times,
//                        "file FILE = "TEXT"" and "file FILE * 3 = "TEXT"" write a text, which has
//                        the escapes of C.
//   append FILE          Writes, in the same ways, at the end of a file.
//   remove FILE, copy FILE FILE, damage FILE     `damage` changes the last byte.
//   replace FILE "TEXT" "TEXT"
//
// After `run`, of that command, the first one also on its line, after " => ":
//
//   exit N: PATTERN      The exit status, and the first pattern of stderr. Both parts may be left
//                        out: a command is expected to succeed.
//   err: PATTERN         stderr has a line for each pattern, in order, and no others. The pattern
//                        "..." is any number of lines, and an empty one is none.
//   out: PATTERN         stdout has such a line.
//   no err: PATTERN, no out: PATTERN             There is no such line.
//   out is               stdout is exactly the indented lines, or = "TEXT".
//   json PATH = VALUE and PATH > VALUE           See tests/tools/cli_files/cli_json.h.
//   contents FILE: PATTERN, no contents FILE: PATTERN
//   exists FILE, missing FILE
//   same FILE FILE, differ FILE FILE             Compares the contents.
//
// A line has a pattern if the parts between "..." occur in it in their order; "^" is its beginning.
// A command that fails has one line on stderr and nothing on stdout, unless the case expects other
// output. No command prints control characters.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/tools/cli_files/cli_file.h"
#include "tests/tools/cli_files/cli_run.h"

namespace stagecoach::tools {
namespace {

namespace fs = std::filesystem;

class CliTest : public ::testing::Test {
 public:
  CliTest(std::string file, CliCase test) : file_(std::move(file)), test_(std::move(test)) {}
  void TestBody() override { PerformCliCase(file_, test_); }

 private:
  const std::string file_;
  const CliCase test_;
};

// Stands for the cases of a file that cannot be read.
class UnreadableCliFile : public ::testing::Test {
 public:
  explicit UnreadableCliFile(std::string error) : error_(std::move(error)) {}
  void TestBody() override { FAIL() << error_; }

 private:
  const std::string error_;
};

void RegisterCliFile(const fs::path& path) {
  const CliNames names = {{"tokenizers", STAGECOACH_TOKENIZER_FIXTURES},
                          {"transformers", STAGECOACH_TRANSFORMER_FIXTURES},
                          {"images", STAGECOACH_IMAGE_FIXTURES},
                          {"lora", STAGECOACH_LORA_FIXTURES},
                          {"quantized", STAGECOACH_QUANTIZED_FIXTURES},
                          {"profiles", STAGECOACH_PARTITION_TEST_DATA}};
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string suite = absl::StrCat("Cli/", path.stem().string());
  const absl::StatusOr<std::vector<CliCase>> cases = ParseCliFile(text.str(), names);
  if (!cases.ok()) {
    const std::string error = absl::StrCat(path.string(), ":", cases.status().message());
    ::testing::RegisterTest(suite.c_str(), "CanBeRead", nullptr, nullptr, __FILE__, __LINE__,
                            [error]() -> ::testing::Test* { return new UnreadableCliFile(error); });
    return;
  }
  for (const CliCase& test : *cases) {
    ::testing::RegisterTest(suite.c_str(), test.name.c_str(), nullptr, nullptr, path.c_str(),
                            test.line_number,
                            [path, test]() -> ::testing::Test* { return new CliTest(path, test); });
  }
}

bool RegisterCliFiles() {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(STAGECOACH_CLI_CASES)) {
    if (entry.path().extension() == ".cli") paths.push_back(entry.path());
  }
  absl::c_sort(paths);
  for (const fs::path& path : paths) RegisterCliFile(path);
  return true;
}

[[maybe_unused]] const bool kCliFilesAreRegistered = RegisterCliFiles();

}  // namespace
}  // namespace stagecoach::tools
