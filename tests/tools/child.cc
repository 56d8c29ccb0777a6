#include "tests/tools/child.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {
namespace {

std::string ReadAll(int file) {
  std::string text;
  char buffer[4096];
  lseek(file, 0, SEEK_SET);
  for (ssize_t n; (n = read(file, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

// The variables that engine/comm reads: a launcher that runs the tests starts none of their
// programs.
constexpr absl::string_view kOfLaunchers[] = {"STAGECOACH_RANK",
                                              "STAGECOACH_LOCAL_RANK",
                                              "STAGECOACH_RENDEZVOUS",
                                              "RANK",
                                              "WORLD_SIZE",
                                              "LOCAL_RANK",
                                              "LOCAL_WORLD_SIZE",
                                              "MASTER_",
                                              "TORCHELASTIC_",
                                              "OMPI_",
                                              "PMI_",
                                              "PMIX_",
                                              "MPI_LOCALRANKID",
                                              "SLURM_"};

// Removes the variables before the first test, which may set some of its own.
class WithoutLauncher : public ::testing::Environment {
 public:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      for (const absl::string_view prefix : kOfLaunchers) {
        if (absl::StartsWith(*variable, prefix)) {
          const absl::string_view text = *variable;
          names.emplace_back(text.substr(0, text.find('=')));
        }
      }
    }
    for (const std::string& name : names) unsetenv(name.c_str());
    setenv("STAGECOACH_RUNS", "none", 1);  // a test says so if a run is to save itself unasked
  }
};

[[maybe_unused]] const auto* const kWithoutLauncher =
    ::testing::AddGlobalTestEnvironment(new WithoutLauncher);

}  // namespace

Arguments Joined(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

void ExpectOneLine(const std::string& err, const ::testing::Matcher<std::string>& line) {
  EXPECT_THAT(err, line);
  EXPECT_EQ(err.find('\n'), err.size() - 1) << "more than a line: " << err;
}

std::vector<std::string> Finished::OutLines() const {
  std::vector<std::string> lines = absl::StrSplit(out, '\n');
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<nlohmann::json> Finished::Events() const {
  std::vector<nlohmann::json> events;
  for (const std::string& line : OutLines()) {
    events.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    STAGECOACH_CHECK(!events.back().is_discarded(), "not JSON: " + line);
  }
  return events;
}

Child::Child(const Arguments& arguments, Output output, const std::optional<std::string>& input,
             const std::string& folder) {
  int theirs = -1;
  int input_ends[2] = {-1, -1};
  if (input.has_value()) {
    STAGECOACH_CHECK(pipe(input_ends) == 0, "pipe failed");
    // The input is no longer than a pipe holds, so this write never waits for a reader.
    const ssize_t written = write(input_ends[1], input->data(), input->size());
    STAGECOACH_CHECK(written == static_cast<ssize_t>(input->size()), "the input is too long");
    close(input_ends[1]);
  }
  if (output == Output::kTerminal) {
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = 80;
    STAGECOACH_CHECK(openpty(&output_, &theirs, nullptr, nullptr, &size) == 0, "openpty failed");
  } else {
    int ends[2];
    STAGECOACH_CHECK(pipe(ends) == 0, "pipe failed");
    output_ = ends[0];
    theirs = ends[1];
  }
  std::FILE* error = std::tmpfile();
  STAGECOACH_CHECK(error != nullptr, "tmpfile failed");
  error_ = dup(fileno(error));
  std::fclose(error);

  std::vector<char*> argv = {const_cast<char*>(STAGECOACH_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  setenv("TERM", "xterm", 1);
  pid_ = fork();
  STAGECOACH_CHECK(pid_ >= 0, "fork failed");
  if (pid_ == 0) {
    dup2(theirs, STDOUT_FILENO);
    dup2(error_, STDERR_FILENO);
    close(theirs);
    close(output_);
    if (input.has_value()) dup2(input_ends[0], STDIN_FILENO);
    // A test runner may have set these to be ignored.
    for (const int signal_number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGXFSZ}) {
      signal(signal_number, SIG_DFL);
    }
    if (chdir(folder.c_str()) == 0) execv(argv[0], argv.data());
    _exit(127);
  }
  close(theirs);
  if (input.has_value()) close(input_ends[0]);
}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CloseOutput();
  close(error_);
}

bool Child::WaitUntilStopped() {
  siginfo_t info = {};
  // WNOWAIT leaves its end for Wait.
  STAGECOACH_CHECK(waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) == 0,
                   "waitid failed");
  return info.si_code == CLD_STOPPED;
}

bool Child::ReadMore() {
  char buffer[4096];
  ssize_t n;
  do {
    n = read(output_, buffer, sizeof(buffer));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;  // Reading a terminal whose other end is closed fails.
  out_.append(buffer, static_cast<size_t>(n));
  return true;
}

bool Child::WaitForOutput(const std::string& text) {
  while (out_.find(text) == std::string::npos) {
    if (!ReadMore()) return false;
  }
  return true;
}

void Child::Signal(int signal) const { kill(pid_, signal); }

void Child::CloseOutput() {
  if (output_ >= 0) close(std::exchange(output_, -1));
}

Finished Child::Wait() {
  while (output_ >= 0 && ReadMore()) {
  }
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return {.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          .out = out_,
          .err = ReadAll(error_)};
}

std::string ProgramPath() { return STAGECOACH_BINARY; }

Finished RunStagecoach(const Arguments& arguments, const std::optional<std::string>& input) {
  return Child(arguments, Child::Output::kPipe, input).Wait();
}

}  // namespace stagecoach::tools
