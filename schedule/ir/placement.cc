#include "schedule/ir/placement.h"

#include "base/check.h"

namespace stagecoach::schedule {

std::vector<Rank> PlaceStages(Placement placement, int ranks, int chunks) {
  STAGECOACH_CHECK(ranks >= 1 && chunks >= 1, "a placement needs ranks and chunks");
  STAGECOACH_CHECK(placement == Placement::kLoop || chunks == 2, "a V has two chunks");
  std::vector<Rank> rank_of_stage;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool goes_up = placement == Placement::kV && chunk == 1;
    for (int i = 0; i < ranks; ++i) rank_of_stage.emplace_back(goes_up ? ranks - 1 - i : i);
  }
  return rank_of_stage;
}

}  // namespace stagecoach::schedule
