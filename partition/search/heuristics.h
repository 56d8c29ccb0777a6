#ifndef STAGECOACH_PARTITION_SEARCH_HEURISTICS_H_
#define STAGECOACH_PARTITION_SEARCH_HEURISTICS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "partition/cost/profile.h"
#include "partition/plan/plan.h"

namespace stagecoach::partition {

// The usual ways to cut pipelines: everything else as in another plan, so that only the cuts
// differ.
//   uniform     equally many layers per stage, the first stages one more (Megatron-LM)
//   parameters  the largest number of parameters of a stage is least (DeepSpeed's
//               partition_method="parameters", solved exactly)
//   flops       the same with the floating-point operations of a stage
std::vector<std::string> HeuristicNames();

// Cuts `like` by the heuristic of that name, without recomputation. `profile`: the one that it is a
// plan for. InvalidArgument: an unknown name, with the known ones; "flops" for a profile without
// any.
absl::StatusOr<Plan> CutByHeuristic(absl::string_view name, const Plan& like,
                                    const Profile& profile);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_HEURISTICS_H_
