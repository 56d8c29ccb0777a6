#include "engine/train/gathered_outputs.h"

#include <algorithm>

#include "base/status_macros.h"
#include "engine/train/gathered_values.h"
#include "kernels/bfloat16.h"

namespace stagecoach::engine {
namespace {

using kernels::Tensor;

// Adds the first `count` elements.
void AppendValues(const Tensor& from, int64_t count, std::vector<float>& values) {
  if (from.dtype == kernels::DType::kFloat32) {
    values.insert(values.end(), from.f32(), from.f32() + count);
    return;
  }
  const auto before = std::ssize(values);
  values.resize(static_cast<size_t>(before + count));
  std::transform(from.bf16(), from.bf16() + count, values.begin() + before, kernels::FromBfloat16);
}

}  // namespace

absl::StatusOr<std::vector<float>> GatherOutputs(RankGroup& group, Executors executors,
                                                 const PreparedRun& run, int64_t rows) {
  const partition::Plan& plan = run.plan;
  const int64_t elements = run.profile.output.elements();
  const int64_t rows_per_replica = plan.batch_rows() / plan.replicas();
  const Rank last = run.lowered->training.rank_of(StageId(plan.num_stages() - 1));
  std::vector<ValueShare> shares;
  std::vector<float> own;
  own.reserve(static_cast<size_t>(std::min(rows, plan.batch_rows()) * elements));
  for (int replica = 0; replica < plan.replicas(); ++replica) {
    const int device = group.mesh().device_of(last, replica);
    int64_t left = std::clamp(rows - replica * rows_per_replica, int64_t{0}, rows_per_replica);
    shares.push_back({.owner = device, .count = left * elements});
    const std::unique_ptr<Executor>& executor = executors[static_cast<size_t>(device)];
    if (executor == nullptr) continue;
    for (MicroBatch i(0); left > 0; i = MicroBatch(i.value() + 1)) {
      const int64_t taken = std::min(left, plan.micro_batch_rows);
      AppendValues(executor->Output(i), taken * elements, own);
      left -= taken;
    }
  }
  const bool has_all = static_cast<int>(group.local_devices().size()) == plan.num_devices();
  if (has_all) return own;
  return GatherValues(group, own, shares);
}

}  // namespace stagecoach::engine
