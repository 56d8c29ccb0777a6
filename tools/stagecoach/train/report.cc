#include "tools/stagecoach/train/report.h"

#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "engine/train/measure/matrix_peak.h"

namespace stagecoach::tools {

Measures Measures::Of(const engine::Dataset& data, const engine::LossSpec& loss,
                      const engine::DataEncoding& encoding) {
  const engine::TensorSpec& input = data.spec().inputs.front();
  if (!input.has_ids()) {
    const std::vector<double>& stddev = encoding.label_stddev;
    return {.label_stddev = stddev.empty() ? 0.0 : stddev.size() == 1 ? stddev.front() : 1.0};
  }
  return {.tokens = input.shape.elements(), .has_perplexity = loss.is_log_likelihood};
}

Speed Speed::Of(const engine::TrainingRun& run, double samples_per_second, bool finds_peak) {
  const partition::Plan& plan = run.prepared.plan();
  double flops = 0;  // of a micro-batch
  for (const partition::LayerCost& layer : run.prepared.profile.layers) flops += layer.flops;
  Speed speed = {
      .devices = plan.num_devices(),
      .flops_per_second = flops / static_cast<double>(plan.micro_batch_rows) * samples_per_second};
  if (!finds_peak || speed.flops_per_second <= 0) return speed;
  const absl::StatusOr<double> peak = engine::MatrixPeakFlops(run.prepared.device, speed.devices);
  if (peak.ok() && *peak > 0) speed.mfu = speed.flops_per_second / *peak;
  return speed;
}

int64_t FolderBytes(const std::string& folder) {
  std::error_code error;
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    const uintmax_t own = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) bytes += own;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace stagecoach::tools
