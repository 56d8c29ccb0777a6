#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_FILE_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/stagecoach/bench/bench_case.h"
#include "tools/stagecoach/bench/bench_results.h"

// The file in which a bench keeps its results, and from which it resumes.
namespace stagecoach::tools {

// Returns results without rows: of this machine, these options, and the files that the grid names.
absl::StatusOr<BenchResults> EmptyResults(const BenchGrid& grid, const std::string& options);

// Returns the file's results; `empty`, if there is none. FailedPrecondition: they are of another
// machine, other options, or files that have changed since.
absl::StatusOr<BenchResults> ResumeResults(const std::string& path, BenchResults empty);

// Does nothing without a path.
absl::Status SaveResults(const std::string& path, const BenchResults& results);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_FILE_H_
