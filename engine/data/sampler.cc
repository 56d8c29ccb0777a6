#include "engine/data/sampler.h"

#include "base/random.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {

std::vector<int64_t> EpochOrder(uint64_t seed, int64_t epoch, int64_t rows) {
  return base::Permutation(seed, StreamId(DataStream::kEpochOrder, epoch), rows);
}

}  // namespace stagecoach::engine
