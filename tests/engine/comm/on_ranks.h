#ifndef STAGECOACH_TESTS_ENGINE_COMM_ON_RANKS_H_
#define STAGECOACH_TESTS_ENGINE_COMM_ON_RANKS_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/comm/rendezvous.h"

namespace stagecoach::engine {

// Calls `work` with each rank's end of a rendezvous, concurrently, each in a thread as if in a
// process of its own. A rank leaves when its call returns. Returns the results by rank.
std::vector<absl::Status> OnRanks(int ranks, absl::FunctionRef<absl::Status(Rendezvous&)> work);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_COMM_ON_RANKS_H_
