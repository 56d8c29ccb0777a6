#ifndef STAGECOACH_TESTS_TOOLS_LAUNCH_LAUNCHED_RUN_H_
#define STAGECOACH_TESTS_TOOLS_LAUNCH_LAUNCHED_RUN_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"

// `stagecoach train` in one process per GPU, as a launcher starts them. GPUs are emulated, and each
// process has its own (tests/testing/cuda/stand_in.h).
namespace stagecoach::tools {

using Variables = std::vector<std::pair<std::string, std::string>>;

// A deadline that is long enough for processes under a sanitizer on a busy machine, and that ends
// those that hang.
inline Arguments Deadline() { return {"--timeout", "300"}; }
// Arguments of a run that would take hours.
inline Arguments Forever() { return {"--epochs", "1000000", "--tuning", "none"}; }

// Returns the arguments of each rank: one epoch of eight steps.
Arguments RankArguments(const Arguments& more);

// Returns the variables that each rank gets.
using VariablesOf = std::function<Variables(int rank)>;
using ArgumentsOf = std::function<Arguments(int rank)>;
ArgumentsOf Same(const Arguments& arguments);

// Sets Stagecoach's own variables.
VariablesOf At(int ranks, const std::string& place);
// FilePlace returns a folder of its own; a port stays taken until the program of the test ends.
std::string FilePlace(const CudaMachine& machine);
std::string TcpPlace();

std::vector<std::unique_ptr<Child>> Start(int ranks, const VariablesOf& variables,
                                          const ArgumentsOf& arguments);
std::vector<Finished> WaitForAll(const std::vector<std::unique_ptr<Child>>& children);
std::vector<Finished> Launch(int ranks, const VariablesOf& variables, const ArgumentsOf& arguments);

// Returns `err` without the notices of ranks that have waited for others, since on a busy machine
// some ranks are late.
std::string WithoutWaits(const std::string& err);

// Expects that all ended with status 0 and without warnings.
void ExpectSuccess(const std::vector<Finished>& all);
// Expects that the process ended by itself, with one line that says why.
void ExpectError(const Finished& process, const ::testing::Matcher<int>& exit_status,
                 const ::testing::Matcher<std::string>& line, const std::string& command = "train");

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_LAUNCH_LAUNCHED_RUN_H_
