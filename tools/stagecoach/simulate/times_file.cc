#include "tools/stagecoach/simulate/times_file.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"

namespace stagecoach::tools {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using schedule::Costs;
using schedule::StageMemory;
using schedule::StageTimes;

constexpr int64_t kMaxTimesFileBytes = int64_t{16} << 20;
constexpr base::DoubleRange kMilliseconds = {.min = 0.0, .max = 1e9};
constexpr base::Int64Range kBytes = {.min = 0, .max = schedule::kMaxSizeBytes};

struct Stage {
  StageTimes times;
  StageMemory memory;
  bool has_memory = false;
};

absl::StatusOr<Stage> ReadStage(ObjectReader reader) {
  Stage stage;
  StageTimes& times = stage.times;
  ASSIGN_OR_RETURN(const double forward_ms, reader.RequiredDouble("forward_ms", kMilliseconds));
  ASSIGN_OR_RETURN(const double backward_ms, reader.RequiredDouble("backward_ms", kMilliseconds));
  ASSIGN_OR_RETURN(const double weight_ms, reader.RequiredDouble("weight_ms", kMilliseconds));
  ASSIGN_OR_RETURN(const double fused_ms,
                   reader.OptionalDouble("fused_ms", backward_ms + weight_ms, kMilliseconds));
  ASSIGN_OR_RETURN(const double reduce_ms, reader.OptionalDouble("reduce_ms", 0.0, kMilliseconds));
  ASSIGN_OR_RETURN(const double step_ms, reader.OptionalDouble("step_ms", 0.0, kMilliseconds));
  times.forward_ns = Nanoseconds(forward_ms);
  times.backward_input_ns = Nanoseconds(backward_ms);
  times.backward_weight_ns = Nanoseconds(weight_ms);
  times.backward_ns = Nanoseconds(fused_ms);
  times.reduce_ns = Nanoseconds(reduce_ms);
  times.step_ns = Nanoseconds(step_ms);
  ASSIGN_OR_RETURN(times.output_bytes, reader.OptionalInt64("output_bytes", 0, kBytes));
  stage.has_memory =
      reader.Has("resident_bytes") || reader.Has("stash_bytes") || reader.Has("weight_stash_bytes");
  ASSIGN_OR_RETURN(stage.memory.parameter_bytes, reader.OptionalInt64("resident_bytes", 0, kBytes));
  ASSIGN_OR_RETURN(stage.memory.stash_bytes, reader.OptionalInt64("stash_bytes", 0, kBytes));
  ASSIGN_OR_RETURN(stage.memory.weight_stash_bytes,
                   reader.OptionalInt64("weight_stash_bytes", 0, kBytes));
  RETURN_IF_ERROR(reader.Finish());
  return stage;
}

// A message between two stages is as large on the way back.
Costs Connect(const std::vector<Stage>& stages) {
  Costs costs;
  bool has_memory = false;
  for (const Stage& stage : stages) {
    StageTimes times = stage.times;
    times.input_gradient_bytes = costs.stages.empty() ? 0 : costs.stages.back().output_bytes;
    StageMemory memory = stage.memory;
    memory.input_bytes = times.input_gradient_bytes;
    memory.input_gradient_bytes = times.input_gradient_bytes;
    memory.input_last_use = schedule::LastUse::kForward;  // what is kept longer is in the stash
    memory.output_bytes = times.output_bytes;
    memory.output_gradient_bytes = times.output_bytes;
    has_memory = has_memory || stage.has_memory;
    costs.stages.push_back(times);
    costs.memory.push_back(memory);
  }
  if (!has_memory) costs.memory.clear();
  return costs;
}

absl::StatusOr<Costs> ReadCosts(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json));
  ASSIGN_OR_RETURN(ArrayReader array, reader.RequiredArray("stages"));
  std::vector<Stage> stages;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader object, array.Object(i));
    ASSIGN_OR_RETURN(Stage stage, ReadStage(std::move(object)));
    stages.push_back(stage);
  }
  Costs costs = Connect(stages);
  schedule::Link link;
  ASSIGN_OR_RETURN(const double latency_ms,
                   reader.OptionalDouble("latency_ms", 0.0, kMilliseconds));
  link.latency_ns = Nanoseconds(latency_ms);
  ASSIGN_OR_RETURN(link.bytes_per_second,
                   reader.OptionalDouble("bytes_per_second", 0.0, {.min = 1.0, .max = 1e18}));
  costs.links = {link};
  ASSIGN_OR_RETURN(costs.overlap_share,
                   reader.OptionalDouble("overlap", 1.0, {.min = 0.01, .max = 1.0}));
  RETURN_IF_ERROR(reader.Finish());
  return costs;
}

}  // namespace

int64_t Nanoseconds(double ms) { return std::llround(1e6 * ms); }

absl::StatusOr<Costs> ReadTimesFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxTimesFileBytes));
  const absl::StatusOr<nlohmann::json> json = base::ParseJson(text);
  if (!json.ok()) return base::InFile(json.status(), path);
  absl::StatusOr<Costs> costs = ReadCosts(*json);
  if (!costs.ok()) return base::InFile(base::WithJsonPlace(costs.status(), text), path);
  return costs;
}

}  // namespace stagecoach::tools
