#ifndef STAGECOACH_ENGINE_TRAIN_GATHERED_OUTPUTS_H_
#define STAGECOACH_ENGINE_TRAIN_GATHERED_OUTPUTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/trained_parameters.h"
#include "engine/train/prepared_run.h"

namespace stagecoach::engine {

// What the model gave for the rows of the batch that the executors have evaluated last, and whose
// outputs were wanted: (rows, output), whichever replicas have them. Among processes all call it,
// and all have the same answer.
absl::StatusOr<std::vector<float>> GatherOutputs(RankGroup& group, Executors executors,
                                                 const PreparedRun& run, const Batch& batch);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_GATHERED_OUTPUTS_H_
