#ifndef STAGECOACH_ENGINE_TRAIN_GATHERED_OUTPUTS_H_
#define STAGECOACH_ENGINE_TRAIN_GATHERED_OUTPUTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/rank_group.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trained_parameters.h"

namespace stagecoach::engine {

// What the model gave for the first `rows` rows of the batch that the executors have evaluated
// last, and of which no loss was wanted: (rows, output), whichever replicas have them. Among
// processes all call it, and all have the same answer.
absl::StatusOr<std::vector<float>> GatherOutputs(RankGroup& group, Executors executors,
                                                 const PreparedRun& run, int64_t rows);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_GATHERED_OUTPUTS_H_
