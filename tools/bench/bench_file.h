#ifndef STAGECOACH_TOOLS_BENCH_BENCH_FILE_H_
#define STAGECOACH_TOOLS_BENCH_BENCH_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/bench_case.h"
#include "tools/bench/bench_results.h"

// The file in which a bench keeps its results, and from which it goes on. Errors are marked with
// their origin (tools/cli/exit_status.h).
namespace stagecoach::tools {

// Results without rows: of this machine, these options, and the files that the grid names.
absl::StatusOr<BenchResults> EmptyResults(const BenchGrid& grid, const std::string& options);

// What the file has; `empty`, if there is none. FailedPrecondition: it is of another machine, other
// options, or files that have changed since.
absl::StatusOr<BenchResults> ResumeResults(const std::string& path, BenchResults empty);

// Does nothing without a path.
absl::Status SaveResults(const std::string& path, const BenchResults& results);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_BENCH_BENCH_FILE_H_
