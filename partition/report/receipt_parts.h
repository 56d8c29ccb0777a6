#ifndef STAGECOACH_PARTITION_REPORT_RECEIPT_PARTS_H_
#define STAGECOACH_PARTITION_REPORT_RECEIPT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "partition/plan/receipt.h"
#include "partition/report/receipt_report.h"
#include "schedule/schedule.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::partition {

// What the forms of a receipt (receipt_report.h) have in common. Not part of the public interface.

// The memory of one device of a rank, all its stages together. The first five sum to the peak.
struct RankMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t stash = 0;
  int64_t buffers = 0;
  int64_t peak = 0;
  int64_t limit = 0;  // of the smallest of the rank's devices; 0: none
};
RankMemory MemoryOf(const Receipt& receipt, schedule::Rank rank);

// "gpu0"; of a rank of several "gpu0-3", or "first to last" where the names share no stem.
std::string DevicesOf(const Receipt& receipt, schedule::Rank rank);

// "0", "0, 7", or of more than three "0, 4 … 28".
std::string StagesOf(const Receipt& receipt, schedule::Rank rank);

// Ascending numbers as "3-7, 12".
std::string Ranges(const std::vector<int>& numbers);

// "1.234": three digits behind the point, none of ns.
std::string InUnit(int64_t ns, const schedule::TimeUnit& unit);

// "12.34 ms", "1234.5 ms", "12.34 s".
std::string Headline(double ns);

// "in groups, as by NCCL"; "" if transfers are separate, which is not mentioned.
std::string GroupedTransfers(const Receipt& receipt);

// "zb-h1, ...: 65.4 ms (+6.1 %)": against the objective of the receipt.
std::string RunnerUp(const Receipt& receipt);

// "120 ms; 96 combinations considered, 14 plans simulated", and whether it was cut short.
std::string Effort(const Receipt& receipt);

// The titles of columns, a row of the receipt's own plan, and one of each other. The first two
// columns and the last are words.
std::vector<std::vector<std::string>> ComparisonCells(const Receipt& own,
                                                      absl::Span<const ComparedPlan> compared);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_RECEIPT_PARTS_H_
