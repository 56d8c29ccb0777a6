#ifndef STAGECOACH_ENGINE_DATA_SAMPLER_H_
#define STAGECOACH_ENGINE_DATA_SAMPLER_H_

#include <cstdint>
#include <vector>

namespace stagecoach::engine {

// Returns the order in which epoch number `epoch` (>= 0) visits the rows of a dataset: a
// permutation of 0, 1, ..., rows-1 that depends on nothing but the arguments. Any process can
// therefore compute it alone, and a resumed run sees the samples that the interrupted one would
// have seen.
std::vector<int64_t> EpochOrder(uint64_t seed, int64_t epoch, int64_t rows);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_SAMPLER_H_
