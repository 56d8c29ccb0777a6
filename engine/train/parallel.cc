#include "engine/train/parallel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer_checks.h"

namespace stagecoach::engine {
namespace {

absl::StatusOr<PreparedRun> Prepare(const Model& model, int replicas, int stages, int micro_batches,
                                    int64_t batch_rows, const TrainerOptions& options) {
  if (micro_batches < 1 || batch_rows < 1 || batch_rows % micro_batches != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch_rows,
                                                   " rows does not divide into ", micro_batches,
                                                   " equal micro-batches"));
  }
  return PrepareRun(model, {.devices = stages,
                            .replication = {replicas, /*gradient_blocks=*/replicas},
                            .micro_batches = micro_batches,
                            .micro_batch_rows = batch_rows / micro_batches,
                            .optimizer = options.optimizer,
                            .device = options.device,
                            .exchange = options.exchange,
                            .results = ResultsOf(options)});
}

// Makes `replicas` of `stages` devices each, with as many gradient blocks.
absl::StatusOr<std::unique_ptr<Trainer>> Spread(const Model& model, int replicas, int stages,
                                                int micro_batches, int64_t batch_rows,
                                                const TrainerOptions& options) {
  absl::StatusOr<PreparedRun> run =
      Prepare(model, replicas, stages, micro_batches, batch_rows, options);
  RETURN_IF_ERROR(TellOthers(options, run.status()));
  return Trainer::Create(*std::move(run), options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> DataParallel(const Model& model, int replicas,
                                                      int64_t batch_rows,
                                                      const TrainerOptions& options) {
  return Spread(model, replicas, /*stages=*/1, replicas, batch_rows, options);
}

absl::StatusOr<std::unique_ptr<Trainer>> DistributedDataParallel(const Model& model,
                                                                 Rendezvous& rendezvous,
                                                                 int64_t batch_rows,
                                                                 TrainerOptions options) {
  options.rendezvous = &rendezvous;
  return Spread(model, rendezvous.ranks(), /*stages=*/1, rendezvous.ranks(), batch_rows, options);
}

absl::StatusOr<std::unique_ptr<Trainer>> PipelineParallel(const Model& model, int stages,
                                                          int micro_batches, int64_t batch_rows,
                                                          const TrainerOptions& options) {
  return Spread(model, /*replicas=*/1, stages, micro_batches, batch_rows, options);
}

}  // namespace stagecoach::engine
