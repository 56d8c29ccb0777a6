#ifndef STAGECOACH_PARTITION_REPORT_EVALUATION_REPORT_H_
#define STAGECOACH_PARTITION_REPORT_EVALUATION_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "partition/plan/plan_evaluation.h"

namespace stagecoach::partition {

// Another plan for the same model and devices, judged as the planner's own.
struct ComparedPlan {
  std::string name;  // the way to cut, or the path of a plan file
  PlanEvaluation evaluation;
  bool fits = true;
};

// An evaluation for people and programs. If nothing was searched (PlanEvaluation::considered is 0)
// none of them claims a lower bound. Pre-condition: the evaluation is one of evaluate_plan.h or
// planner.h.

// Formats an evaluation for the terminal, at most 80 columns wide unless numbers are very long: the
// choice with its objective, bound and gap; a row per stage with its times, micro-batches in flight
// and idle share; a row per rank with all parts of its memory; the runner-up, what would change the
// choice, and the effort.
std::string ToText(const PlanEvaluation& evaluation);

// Returns one JSON object on one line, in UTF-8 whatever the names are, with an entry for each plan
// that it is compared with, if any. Its keys are documented in docs/planner.md.
std::string ToJson(const PlanEvaluation& evaluation, absl::Span<const ComparedPlan> compared = {});

// Returns one page that needs a browser and nothing from elsewhere: headline numbers, bars of every
// device's memory against its limit, the timeline of one step (schedule/render/html.h), and the
// tables of ToText, with that of ComparisonTable if anything is compared. Without a trace it has no
// timeline and no script.
std::string ToHtml(const PlanEvaluation& evaluation, absl::Span<const ComparedPlan> compared = {});

// The parts of that page as markup, for a page that has others as well.
struct PageParts {
  std::string style;    // for its head
  std::string tiles;    // headline numbers
  std::string memory;   // bars of every device's memory, and why the plan was chosen
  std::string details;  // the timeline and the tables
  std::string script;   // to stand after them
};
PageParts PagePartsOf(const PlanEvaluation& evaluation,
                      absl::Span<const ComparedPlan> compared = {});

// Returns a row for the evaluation's own plan, then one for each compared plan, with durations as
// in ToText.
std::string ComparisonTable(const PlanEvaluation& own, absl::Span<const ComparedPlan> compared);

// Returns the largest peak of any device.
int64_t PeakBytes(const PlanEvaluation& evaluation);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_EVALUATION_REPORT_H_
