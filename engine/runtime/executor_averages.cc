// The moving averages of parameters, between the runs of an executor.

#include <memory>

#include "base/status_macros.h"
#include "engine/runtime/executor.h"

namespace stagecoach::engine {

absl::Status Executor::StartAverages() {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    const StageOptions& options = stage->options();
    if (!options.replication.shards_optimizer) {
      RETURN_IF_ERROR(stage->StartAverages());
      continue;
    }
    absl::Status status;
    options_.beside->stream().Run([&] {
      status = shards_[static_cast<size_t>(options.id.value())]->StartAverages();
      if (status.ok()) status = options_.beside->stream().Finish();
    });
    RETURN_IF_ERROR(status);
  }
  return FinishAlone();
}

absl::Status Executor::SwapAverages() {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    const StageOptions& options = stage->options();
    if (!options.replication.shards_optimizer) {
      RETURN_IF_ERROR(stage->SwapAverages());
      continue;
    }
    // Each replica has the averages of its shard, and all get the values that it then has.
    const Reduction::Task swap = {.stage = options.id,
                                  .added = {},
                                  .shard = shards_[static_cast<size_t>(options.id.value())].get(),
                                  .swaps = true,
                                  .gathered = stage->all_values()};
    absl::Status status;
    options_.beside->stream().Run([&] { status = reduction_->RunAlone(swap); });
    RETURN_IF_ERROR(status);
  }
  return FinishAlone();
}

}  // namespace stagecoach::engine
