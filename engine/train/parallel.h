#ifndef STAGECOACH_ENGINE_TRAIN_PARALLEL_H_
#define STAGECOACH_ENGINE_TRAIN_PARALLEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/comm/rendezvous.h"
#include "engine/models/model.h"
#include "engine/train/trainer.h"

// The usual ways to spread a model over devices, by their well-known names. Each is short for
// PrepareRun with one replication and number of stages, and Trainer::Create: the result is a
// trainer like any other, and its run() says how it works. For everything else (stages of replicas,
// other schedules, numbers of gradient blocks) call those two.
//
// InvalidArgument: a batch that cannot be divided into equal micro-batches, or no replica. Other
// errors: those of PrepareRun and Trainer::Create.
namespace stagecoach::engine {

// Trains on `replicas` devices of this process, each of which has the whole model. In a step, each
// gets an equal share of the batch's samples as one micro-batch (scatter), and all update their
// parameters by the average of their gradients. Predict gathers the outputs of all of them.
absl::StatusOr<std::unique_ptr<Trainer>> DataParallel(const Model& model, int replicas,
                                                      int64_t batch_rows,
                                                      const TrainerOptions& options = {});

// Does the same with each replica in a process of its own: as many as meet in `rendezvous`, which
// outlives the trainer. `batch_rows`: the total over all processes. `options` needs no rendezvous.
// A failure is reported to the other processes.
absl::StatusOr<std::unique_ptr<Trainer>> DistributedDataParallel(const Model& model,
                                                                 Rendezvous& rendezvous,
                                                                 int64_t batch_rows,
                                                                 TrainerOptions options = {});

// Trains on `stages` devices, each of which has a part of the model's layers. A batch streams
// through them as `micro_batches` equal parts, by the schedule 1F1B.
absl::StatusOr<std::unique_ptr<Trainer>> PipelineParallel(const Model& model, int stages,
                                                          int micro_batches, int64_t batch_rows,
                                                          const TrainerOptions& options = {});

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_PARALLEL_H_
