// The run that looks for NaN and infinity.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/runtime/executor.h"

namespace stagecoach::engine {

absl::Status Executor::PrepareSearch() {
  if (options_.device->memory_is_host() || seen_.bytes() > 0) return absl::OkStatus();
  int64_t bytes = 0;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    bytes = std::max(bytes, stage->LargestShownBytes());
  }
  ASSIGN_OR_RETURN(seen_, options_.device->AllocateHost(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<NonFinite>> Executor::FindNonFinite(const Batch& batch) {
  NonFiniteSearch::Read read;
  if (!options_.device->memory_is_host()) {
    read = [&](const Tensor& tensor) { return ReadNow(tensor); };
  }
  NonFiniteSearch search(std::move(read));
  for (const std::unique_ptr<Stage>& stage : stages_) stage->Watch(&search);
  const TrainStep step = {.update = last_update_};
  const absl::Status performed = RunSchedule({.bound = *training_,
                                              .batch = batch,
                                              .step = &step,
                                              .is_measured = false,
                                              .timed = {},
                                              .search = &search});
  for (const std::unique_ptr<Stage>& stage : stages_) stage->Watch(nullptr);
  RETURN_IF_ERROR(performed);
  return search.first();
}

absl::StatusOr<const std::byte*> Executor::ReadNow(const Tensor& tensor) {
  STAGECOACH_CHECK(tensor.bytes() <= seen_.bytes(), "larger than what a layer makes");
  kernels::Stream& stream = options_.device->stream();
  RETURN_IF_ERROR(stream.CopyToHost(seen_.data(), tensor.data, tensor.bytes()));
  RETURN_IF_ERROR(WaitWithDeadline([&](absl::FunctionRef<absl::Status()> poll) {
    return stream.Finish(base::Deadline::Never(), poll);
  }));
  return seen_.data();
}

}  // namespace stagecoach::engine
