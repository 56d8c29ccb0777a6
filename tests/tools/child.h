#ifndef STAGECOACH_TESTS_TOOLS_CHILD_H_
#define STAGECOACH_TESTS_TOOLS_CHILD_H_

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace stagecoach::tools {

// The program's arguments.
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
  // Returns the object on each line of `out`; aborts if one is not JSON.
  std::vector<nlohmann::json> Events() const;
};

// Expects that `err` is one line that matches.
void ExpectOneLine(const std::string& err, const ::testing::Matcher<std::string>& line);

// The program `stagecoach`, running with the given arguments and this process's variables, except
// those by which a launcher may have started the tests. Aborts if it cannot be started.
class Child {
 public:
  enum class Output { kPipe, kTerminal };  // a terminal has 80 columns

  // `input` is what its standard input, a pipe, holds; nullopt: it inherits that of the tests.
  // `folder` is the one that it works in.
  explicit Child(const Arguments& arguments, Output output = Output::kPipe,
                 const std::optional<std::string>& input = std::nullopt,
                 const std::string& folder = ".");
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits until its output so far contains `text`, or has ended; returns whether it contains it.
  bool WaitForOutput(const std::string& text);
  void Signal(int signal) const;
  pid_t pid() const { return pid_; }
  // Waits until a signal (SIGSTOP) has stopped it, or it has ended; returns whether it is stopped.
  bool WaitUntilStopped();
  // Closes the reading end, so that the program's next write has no reader.
  void CloseOutput();
  // Waits for its end. Must be called once.
  Finished Wait();

 private:
  // Returns false at the end of the output.
  bool ReadMore();

  pid_t pid_ = -1;
  int output_ = -1;
  int error_ = -1;  // a temporary file
  std::string out_;
};

// Returns the path of the program.
std::string ProgramPath();

// Runs the program from start to end. `input`, if present, is on its standard input, a pipe.
Finished RunStagecoach(const Arguments& arguments,
                       const std::optional<std::string>& input = std::nullopt);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CHILD_H_
