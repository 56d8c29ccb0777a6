#ifndef STAGECOACH_PARTITION_REPORT_EVALUATION_PARTS_H_
#define STAGECOACH_PARTITION_REPORT_EVALUATION_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/report/evaluation_report.h"
#include "schedule/ir/schedule.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::partition {

// Parts that the forms of an evaluation (evaluation_report.h) share. Not part of the public
// interface.

// The memory of one device of a rank, for all its stages. The first five sum to the peak.
struct RankMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t stash = 0;
  int64_t buffers = 0;
  int64_t peak = 0;
  int64_t limit = 0;  // of the smallest of the rank's devices; 0: none
};
RankMemory MemoryOf(const PlanEvaluation& evaluation, schedule::Rank rank);

// Returns "gpu0"; for a rank of several "gpu0-3", or "first to last" if the names share no stem.
std::string DevicesOf(const PlanEvaluation& evaluation, schedule::Rank rank);

// Returns "0", "0, 7", or for more than three "0, 4 … 28".
std::string StagesOf(const PlanEvaluation& evaluation, schedule::Rank rank);

// Returns ascending numbers as "3-7, 12".
std::string Ranges(const std::vector<int>& numbers);

// Returns "1.234": three digits behind the point, none for ns.
std::string InUnit(int64_t ns, const schedule::TimeUnit& unit);

// Returns "12.34 ms", "1234.5 ms" or "12.34 s".
std::string Headline(double ns);

// Returns "in groups, as by NCCL"; "" if transfers are separate, which is not mentioned.
std::string GroupedTransfers(const PlanEvaluation& evaluation);

// Returns "zb-h1, ...: 65.4 ms (+6.1 %)", compared to the objective of the evaluation.
std::string RunnerUp(const PlanEvaluation& evaluation);

// Returns "40 % of the stashes that are kept long enough, 1.2 GB of host memory at most per
// device".
std::string Offloads(const PlanEvaluation& evaluation);

// Returns "gpu2, gpu3: it is faster without them"; "" if all devices are used.
std::string LeftOut(const PlanEvaluation& evaluation);

// Returns "120 ms; 96 combinations considered, 14 plans simulated", and whether it was cut short.
std::string Effort(const PlanEvaluation& evaluation);

// Returns the titles of columns, a row for the evaluation's own plan, and one for each other plan.
// The first two columns and the last are words.
std::vector<std::vector<std::string>> ComparisonCells(const PlanEvaluation& own,
                                                      absl::Span<const ComparedPlan> compared);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_EVALUATION_PARTS_H_
