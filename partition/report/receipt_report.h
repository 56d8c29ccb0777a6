#ifndef STAGECOACH_PARTITION_REPORT_RECEIPT_REPORT_H_
#define STAGECOACH_PARTITION_REPORT_RECEIPT_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "partition/plan/receipt.h"

namespace stagecoach::partition {

// Another plan for the same model and devices, judged as the planner's own.
struct ComparedPlan {
  std::string name;  // of the way to cut, or the path of a plan file
  Receipt receipt;
  bool fits = true;
};

// A receipt for people and programs. Where nothing was searched (Receipt::considered is 0) none of
// them claims a lower bound. Pre-condition: the receipt is one of receipt.h or planner.h.

// For the terminal, at most 80 columns wide unless numbers are very long: the choice with its
// objective, bound and gap; a row per stage with its times, micro-batches in flight and idle share;
// a row per rank with all parts of its memory; the runner-up, what would change the choice, and the
// effort.
std::string ToText(const Receipt& receipt);

// One JSON object on one line, in UTF-8 whatever the names are, with an entry for each plan that it
// is compared with, if there are any. Its keys are documented in docs/plan-files.md.
std::string ToJson(const Receipt& receipt, absl::Span<const ComparedPlan> compared = {});

// One page that needs a browser and nothing from elsewhere: headline numbers, bars of every
// device's memory against its limit, the timeline of one step (schedule/pictures/html.h), and the
// tables of ToText, with that of ComparisonTable if anything is compared. Without a trace it has no
// timeline and no script.
std::string ToHtml(const Receipt& receipt, absl::Span<const ComparedPlan> compared = {});

// A row for the receipt's own plan, then one for each, with durations as ToText has them.
std::string ComparisonTable(const Receipt& own, absl::Span<const ComparedPlan> compared);

// The largest of a device.
int64_t PeakBytes(const Receipt& receipt);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_RECEIPT_REPORT_H_
