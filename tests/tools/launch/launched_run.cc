#include "tests/tools/launch/launched_run.h"

#include <filesystem>
#include <list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/comm/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {

using ::testing::AllOf;
using ::testing::IsEmpty;
using ::testing::Matcher;
using ::testing::StartsWith;

Arguments RankArguments(const Arguments& more) {
  return Joined({"train", "--device", "cuda", "--data", "synthetic:256x16x4", "--layers", "4",
                 "--width", "16", "--global-batch-size", "32", "--epochs", "1"},
                more);
}

ArgumentsOf Same(const Arguments& arguments) {
  return [arguments](int /*rank*/) { return arguments; };
}

std::vector<std::unique_ptr<Child>> Start(int ranks, const VariablesOf& variables,
                                          const ArgumentsOf& arguments) {
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const Variables own = variables(rank);  // outlives the pointers to its names
    std::list<ScopedVariable> set;
    for (const auto& [name, value] : own) set.emplace_back(name.c_str(), value);
    children.push_back(std::make_unique<Child>(arguments(rank)));
  }
  return children;
}

std::vector<Finished> WaitForAll(const std::vector<std::unique_ptr<Child>>& children) {
  std::vector<Finished> all;
  for (const std::unique_ptr<Child>& child : children) all.push_back(child->Wait());
  return all;
}

std::vector<Finished> Launch(int ranks, const VariablesOf& variables,
                             const ArgumentsOf& arguments) {
  return WaitForAll(Start(ranks, variables, arguments));
}

VariablesOf At(int ranks, const std::string& place) {
  return [ranks, place](int rank) {
    return Variables{{"STAGECOACH_RANK", absl::StrCat(rank)},
                     {"STAGECOACH_RANKS", absl::StrCat(ranks)},
                     {"STAGECOACH_RENDEZVOUS", place}};
  };
}

std::string FilePlace(const CudaMachine& machine) {
  const std::string folder = machine.home() + "/place";
  std::filesystem::create_directory(folder);
  return "file:" + folder;
}

std::string TcpPlace() {
  static auto* const ports = new std::list<engine::FreePort>;
  return absl::StrCat("tcp://localhost:",
                      ports->emplace_back(engine::FreePort::Take().value()).number());
}

std::string WithoutWaits(const std::string& err) {
  std::string rest;
  for (const absl::string_view line : absl::StrSplit(err, '\n')) {
    if (!absl::StrContains(line, ": waits for rank")) absl::StrAppend(&rest, line, "\n");
  }
  rest.pop_back();  // nothing follows the last line break
  return rest;
}

void ExpectSuccess(const std::vector<Finished>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(all[rank].exit_status, 0) << "rank " << rank << ": " << all[rank].err;
    EXPECT_THAT(WithoutWaits(all[rank].err), IsEmpty()) << "rank " << rank;
  }
}

void ExpectError(const Finished& process, const Matcher<int>& exit_status,
                 const Matcher<std::string>& line, const std::string& command) {
  EXPECT_THAT(process.exit_status, exit_status);
  ExpectOneLine(WithoutWaits(process.err), AllOf(StartsWith("stagecoach " + command + ": "), line));
}

}  // namespace stagecoach::tools
