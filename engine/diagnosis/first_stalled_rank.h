#ifndef STAGECOACH_ENGINE_DIAGNOSIS_FIRST_STALLED_RANK_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_FIRST_STALLED_RANK_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/diagnosis/flight_recorder.h"

namespace stagecoach::engine {

// The rank that has held up the others, and its place.
struct FirstStalledRank {
  std::vector<int> devices;  // several: they wait for one another
  // "rank 2 (stage 2, replica 0) stopped first: in the forward pass of micro-batch 3 in step
  // 57, 1.2 s before the last action of another rank; rank 3 waited for its activation of
  // micro-batch 3";
  // "" if no rank has begun a step.
  std::string sentence;
  std::string place;  // of the first device: "in the forward pass of micro-batch 3 in step 57"
};

// Finds the first stalled rank. `records`: those of all devices of a run, by number, on one clock
// (AlignClocks). Ranks that have not closed their recorders, if others have, were killed or hang,
// so it is one of them; otherwise it is one of all. Among these, following what an unfinished
// action waits for leads from rank to rank, to one that waits for none of them; if there are
// several, the one that ended first.
FirstStalledRank FindFirstStalledRank(absl::Span<const RankRecord> records);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_FIRST_STALLED_RANK_H_
