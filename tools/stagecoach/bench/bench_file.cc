#include "tools/stagecoach/bench/bench_file.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::tools {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 28;  // of a model or schedule file

absl::Status Refusal(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("--results: ", path, " is of ", why, ": name another file"));
}

}  // namespace

absl::StatusOr<BenchResults> EmptyResults(const BenchGrid& grid, const std::string& options) {
  BenchResults results = {.machine = InspectBenchMachine(), .options = options};
  const auto add = [&](const std::string& path) {
    const absl::StatusOr<std::string> text = base::ReadFile(path, kMostBytes);
    // The rows of a file that cannot be read say so.
    if (text.ok()) results.files[path] = base::HashOf(*text);
  };
  for (const std::string& model : grid.models) {
    if (absl::EndsWith(model, ".toml")) add(model);
  }
  for (const auto& [schedule, shape] : grid.files) add(schedule);
  return results;
}

absl::StatusOr<BenchResults> ResumeResults(const std::string& path, BenchResults empty) {
  if (path.empty()) return empty;
  RETURN_IF_ERROR(base::CheckWritable(path));
  if (!base::Exists(path)) return empty;
  ASSIGN_OR_RETURN(BenchResults found, ReadBenchResults(path));
  BenchMachine machine = empty.machine;
  machine.date = found.machine.date;
  if (found.machine != machine) {
    return Refusal(path, absl::StrCat(ToString(found.machine), "; this is ", ToString(machine)));
  }
  if (found.options != empty.options) {
    return Refusal(
        path, absl::StrCat("other options: \"", found.options, "\", here \"", empty.options, "\""));
  }
  for (const auto& [name, hash] : empty.files) {
    const auto [known, is_new] = found.files.try_emplace(name, hash);
    if (known->second != hash) return Refusal(path, absl::StrCat(name, " as it was before"));
  }
  return found;
}

absl::Status SaveResults(const std::string& path, const BenchResults& results) {
  if (path.empty()) return absl::OkStatus();
  return base::WriteFileAtomically(path, absl::StrCat(ToJson(results).dump(1), "\n"));
}

}  // namespace stagecoach::tools
