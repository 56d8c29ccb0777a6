#ifndef STAGECOACH_TESTS_SCHEDULE_COLLECTIVE_SCHEDULES_H_
#define STAGECOACH_TESTS_SCHEDULE_COLLECTIVE_SCHEDULES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "schedule/ir/schedule.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {

inline constexpr Transfers kAllTransfers[] = {Transfers::kSeparate, Transfers::kGrouped};

inline LoweringOptions Both(Transfers transfers, ResultsPlace results = ResultsPlace::kEnd) {
  return {.exchange_norms = true, .results = results, .transfers = transfers};
}

// Two ranks, a micro-batch each way; valid with either kind of transfers.
inline constexpr char kStart0[] = "F0.0 SEND_F0.0 RECV_B0.0 BW0.0";
inline constexpr char kStart1[] = "RECV_F1.0 F1.0 BW1.0 SEND_B1.0";

// Returns the two lists as a schedule whose groups are 0: all ranks, 1: all ranks once more, 2:
// rank 0.
inline Schedule WithGroups(const std::string& rank0, const std::string& rank1) {
  Schedule schedule = FromText({0, 1}, 1, {rank0, rank1});
  schedule.groups = {{"all", {Rank(0), Rank(1)}}, {"both", {Rank(0), Rank(1)}}, {"one", {Rank(0)}}};
  return schedule;
}
inline Schedule AfterStart(const std::string& rank0, const std::string& rank1) {
  return WithGroups(absl::StrCat(kStart0, " ", rank0), absl::StrCat(kStart1, " ", rank1));
}

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_COLLECTIVE_SCHEDULES_H_
