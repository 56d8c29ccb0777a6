#ifndef STAGECOACH_ENGINE_DIAGNOSIS_FIRST_STOP_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_FIRST_STOP_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/diagnosis/action_ring.h"

namespace stagecoach::engine {

// Which rank has held up the others, and where it was.
struct FirstStop {
  std::vector<int> devices;  // several: they wait for one another
  // "rank 2 (stage 2, replica 0) stopped first: in the forward pass of micro-batch 3 in step
  // 57, 1.2 s before the last action of another rank; rank 3 waited for its activation of
  // micro-batch 3";
  // "" if no rank has begun a step.
  std::string sentence;
  std::string place;  // of the first device: "in the forward pass of micro-batch 3 in step 57"
};

// `records`: those of all devices of a run, by number, on one clock (AlignClocks). Ranks that have
// not closed their rings, if others have, were killed or hang, so it is one of them; otherwise it
// is one of all. Among these, what an unfinished action waits for leads from rank to rank, to one
// that waits for none of them: of several, the one that ended first.
FirstStop FindFirstStop(absl::Span<const RankRecord> records);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_FIRST_STOP_H_
