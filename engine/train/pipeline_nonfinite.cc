// Handles a step with NaN or infinity (OnNonFinite).

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/runtime/nonfinite_search.h"
#include "engine/train/pipeline_trainer.h"

namespace stagecoach::engine {

absl::Status PipelineTrainer::EndNonFinite(const Batch& batch, StepResult& taken, bool can_search) {
  if (options_.on_nonfinite == OnNonFinite::kIgnore) return absl::OkStatus();
  const bool has_waited = options_.optimizer.waits_for_norm();
  const bool has_changed = !has_waited || std::isfinite(taken.gradient_norm);
  if (has_changed && std::isfinite(taken.loss)) return absl::OkStatus();
  std::string where;
  if (!has_changed && can_search) {
    ASSIGN_OR_RETURN(where, WhereNotFinite(batch));
  } else if (!has_changed) {
    where = "gradients are not finite; where they begin was not searched, as a process was lost";
  } else {
    where = absl::StrCat(
        "the loss of micro-batch ", FirstWithoutLoss(),
        " is not finite, and parameters have been updated with it",
        has_waited ? "" : "; a check of gradients before updates would name the layer");
  }
  if (!has_changed && options_.on_nonfinite == OnNonFinite::kSkip) {
    taken.skipped_for = std::move(where);
    return absl::OkStatus();
  }
  return group_->Fail(absl::OutOfRangeError(absl::StrCat("step ", batch.step, ": ", where)));
}

int PipelineTrainer::FirstWithoutLoss() const {
  const int own = plan().schedule.num_micro_batches;
  for (int i = 0; i < plan().micro_batches(); ++i) {
    const LossResult result = ExecutorOf(i / own).Result(i / own, MicroBatch(i % own));
    if (!std::isfinite(result.loss)) return i;
  }
  return 0;  // never reached: their sum would be finite
}

absl::StatusOr<std::string> PipelineTrainer::WhereNotFinite(const Batch& batch) {
  RETURN_IF_ERROR(group_->Agree(group_->ForEachLocalDevice(
      [&](int device) { return executors_[static_cast<size_t>(device)]->PrepareSearch(); })));
  std::vector<std::optional<NonFinite>> found(executors_.size());
  RETURN_IF_ERROR(group_->RunCollective([&](int device) -> absl::Status {
    const auto index = static_cast<size_t>(device);
    ASSIGN_OR_RETURN(found[index], executors_[index]->FindNonFinite(OwnBatch(batch, device)));
    return absl::OkStatus();
  }));
  std::optional<NonFinite> first;
  const auto add = [&first](const std::optional<NonFinite>& one) {
    if (one.has_value() && (!first.has_value() || *one < *first)) first = one;
  };
  for (const std::optional<NonFinite>& one : found) add(one);
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, group_->Gather(ToText(first)));
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const std::optional<NonFinite> one, ParseNonFinite(text));
    add(one);
  }
  if (first.has_value()) return Describe(*first);
  return "no layer makes a number that is not finite of one micro-batch, but the sum of their "
         "gradients has one";
}

std::string PipelineTrainer::Describe(const NonFinite& found) const {
  const std::string micro_batch = absl::StrCat("micro-batch ", found.micro_batch);
  if (found.pass == Pass::kLoss) {
    return absl::StrCat("the loss of ", micro_batch,
                        " is not finite, or its gradient, though all layers' outputs are");
  }
  const bool is_forward = found.pass == Pass::kForward;
  const auto layer = static_cast<size_t>(found.layer());
  return absl::StrCat(is_forward ? "the output" : "a gradient", " of layer ", layer, " (",
                      run_.profile.layers[layer].name, ") for ", micro_batch,
                      " is not finite; it is the first in the ",
                      is_forward ? "forward" : "backward", " pass");
}

}  // namespace stagecoach::engine
