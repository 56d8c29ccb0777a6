#ifndef STAGECOACH_TESTS_TOOLS_CHILD_H_
#define STAGECOACH_TESTS_TOOLS_CHILD_H_

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace stagecoach::tools {

// Of the program.
using Arguments = std::vector<std::string>;
Arguments Joined(Arguments first, const Arguments& more);

// Exit statuses, as `--help` lists them.
inline constexpr int kStatusUsage = 2, kStatusBadData = 65, kStatusUnavailable = 69,
                     kStatusInternal = 70, kStatusCannotWrite = 74, kStatusTryAgain = 75,
                     kStatusBadConfiguration = 78, kHungUp = 129, kStopped = 130, kBrokenPipe = 141,
                     kTerminated = 143;

// How a run of the program ended.
struct Finished {
  int exit_status = -1;  // -1: killed by `signal`
  int signal = 0;
  std::string out;
  std::string err;

  std::vector<std::string> OutLines() const;
  // One object of each line of `out`; aborts if one is not JSON.
  std::vector<nlohmann::json> Events() const;
};

// Expects that `err` is one line which matches.
void ExpectOneLine(const std::string& err, const ::testing::Matcher<std::string>& line);

// The program `stagecoach`, running with the given arguments and this process's variables, but for
// those by which a launcher may have started the tests. Aborts if it cannot be started.
class Child {
 public:
  enum class Output { kPipe, kTerminal };  // a terminal has 80 columns

  // `input`: what its standard input holds, a pipe; nullopt: that of the tests.
  explicit Child(const Arguments& arguments, Output output = Output::kPipe,
                 const std::optional<std::string>& input = std::nullopt);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits until its output so far contains `text`, or has ended; returns whether it does.
  bool WaitForOutput(const std::string& text);
  void Signal(int signal) const;
  pid_t pid() const { return pid_; }
  // Waits until a signal has stopped it (SIGSTOP), or it has ended; returns whether it is stopped.
  bool WaitUntilStopped();
  // Its next write has no reader.
  void CloseOutput();
  // Waits for its end. To be called once.
  Finished Wait();

 private:
  // False at the end of the output.
  bool ReadMore();

  pid_t pid_ = -1;
  int output_ = -1;
  int error_ = -1;  // a temporary file
  std::string out_;
};

// Where the program is.
std::string ProgramPath();

// Runs the program from start to end. `input`, if given, is on its standard input, a pipe.
Finished RunStagecoach(const Arguments& arguments,
                       const std::optional<std::string>& input = std::nullopt);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CHILD_H_
