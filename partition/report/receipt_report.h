#ifndef STAGECOACH_PARTITION_REPORT_RECEIPT_REPORT_H_
#define STAGECOACH_PARTITION_REPORT_RECEIPT_REPORT_H_

#include <string>

#include "partition/receipt.h"

namespace stagecoach::partition {

// A receipt for people and programs. Where nothing was searched (Receipt::considered is 0) none of
// them claims a lower bound. Pre-condition: the receipt is one of receipt.h or planner.h.

// For the terminal, at most 100 columns wide: the choice with its objective, bound and gap; a row
// per stage with its times, micro-batches in flight and idle share; a row per rank with all parts
// of its memory; the runner-up, what would change the choice, and the effort.
std::string ToText(const Receipt& receipt);

// One JSON object on one line, in UTF-8 whatever the names are. Its keys are documented in
// docs/plan-files.md.
std::string ToJson(const Receipt& receipt);

// One page that needs a browser and nothing from elsewhere: headline numbers, bars of every
// device's memory against its limit, the timeline of one step (schedule/pictures/html.h), and the
// tables of ToText. Without a trace it has no timeline and no script.
std::string ToHtml(const Receipt& receipt);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_RECEIPT_REPORT_H_
