#include "engine/train/gathered_outputs.h"

#include <algorithm>

#include "base/status_macros.h"
#include "engine/runtime/gathered_values.h"
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
                                                 const PreparedRun& run, const Batch& batch) {
  const partition::Plan& plan = run.plan();
  const int64_t elements = run.profile.output.elements();
  const int micro_batches = plan.schedule.num_micro_batches;
  const Rank last = run.compiled.lowered->training.rank_of(StageId(plan.num_stages() - 1));
  std::vector<ValueShare> shares;
  std::vector<float> own;
  own.reserve(batch.rows.size() * static_cast<size_t>(elements));
  for (int replica = 0; replica < plan.replicas(); ++replica) {
    const int device = group.mesh().device_of(last, replica);
    const std::unique_ptr<Executor>& executor = executors[static_cast<size_t>(device)];
    Batch part = batch;
    part.first_micro_batch = replica * micro_batches;
    shares.push_back({.owner = device, .count = 0});
    for (int i = 0; i < micro_batches; ++i) {
      const int64_t count = std::ssize(part.RowsOf(i, plan.micro_batch_rows)) * elements;
      shares.back().count += count;
      if (executor == nullptr || count == 0) continue;
      AppendValues(executor->Output(MicroBatch(i)), count, own);
    }
  }
  const bool has_all = static_cast<int>(group.local_devices().size()) == plan.num_devices();
  if (has_all) return own;
  return GatherValues(group, own, shares);
}

}  // namespace stagecoach::engine
