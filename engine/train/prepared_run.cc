#include "engine/train/plan_model.h"

#include "base/status_macros.h"

namespace stagecoach::engine {

partition::PlanRequest RequestFor(const ModelProfile& profile, const PlanOptions& options) {
  return {.layers = profile.layers,
          .loss = profile.loss,
          .devices = options.devices,
          .schedule =
              partition::GeneratedSchedule(options.schedule, options.micro_batches, options.chunks),
          .micro_batch_rows = options.micro_batch_rows,
          .device_memory_bytes = options.device.memory_bytes,
          .transfers = TransfersOf(
              {.ranks = options.devices, .device = options.device, .exchange = options.exchange})};
}

absl::StatusOr<partition::Plan> PlanModel(const Model& model, const PlanOptions& options) {
  ASSIGN_OR_RETURN(const ModelProfile profile,
                   AnalyzeModel(model, {.micro_batch_rows = options.micro_batch_rows,
                                        .micro_batches = options.micro_batches,
                                        .optimizer = options.optimizer,
                                        .device = options.device}));
  return partition::MakePlan(RequestFor(profile, options));
}

}  // namespace stagecoach::engine
