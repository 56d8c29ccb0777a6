#include "tools/stagecoach/bench/bench_results.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/units.h"
#include "engine/session/machine/machine.h"
#include "kernels/cuda_backend.h"
#include "partition/plan/plan_evaluation.h"

namespace stagecoach::tools {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using nlohmann::ordered_json;

constexpr char kFormat[] = "stagecoach-bench";
constexpr int kVersion = 1;
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int kMaxInt = std::numeric_limits<int>::max();

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) {
      return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  }
  return "";
}

ordered_json RowToJson(const BenchRow& row) {
  ordered_json json = ToJson(row.what);
  if (!row.error.empty()) {
    json["error"] = row.error;
    return json;
  }
  const BenchInterval interval = MedianInterval(row.steps_ms);
  json["step_ms"] = row.step_ms();
  json["step_ms_interval"] = {interval.low, interval.high};
  json["samples_per_second"] = row.samples_per_second();
  if (row.tokens > 0) {
    json["tokens_per_sample"] = row.tokens;
    json["tokens_per_second"] = row.tokens_per_second();
  }
  const auto add = [&](const char* key, auto value) {
    if (value > 0) json[key] = value;
  };
  add("predicted_step_ms", row.predicted_step_ms);
  add("flops", row.flops);
  add("peak_flops_per_second", row.peak_flops);
  add("peak_share", row.peak_share());
  json["bubble"] = row.bubble;
  add("predicted_bubble", row.predicted_bubble);
  add("other_load", row.other_load);
  json["peak_bytes"] = row.peak_bytes;
  json["predicted_peak_bytes"] = row.predicted_peak_bytes;
  json["sent_bytes"] = row.sent_bytes;
  json["predicted_sent_bytes"] = row.predicted_sent_bytes;
  json["steps_ms"] = row.steps_ms;
  return json;
}

absl::StatusOr<int> ReadInt(ObjectReader& reader, const char* key) {
  ASSIGN_OR_RETURN(const int64_t value, reader.RequiredInt64(key, {.min = 1, .max = kMaxInt}));
  return static_cast<int>(value);
}

absl::StatusOr<BenchCase> ReadCase(ObjectReader& reader) {
  BenchCase what;
  ASSIGN_OR_RETURN(what.model, reader.RequiredString("model"));
  ASSIGN_OR_RETURN(what.precision, reader.RequiredString("precision"));
  ASSIGN_OR_RETURN(what.devices, ReadInt(reader, "devices"));
  ASSIGN_OR_RETURN(what.replicas, ReadInt(reader, "replicas"));
  ASSIGN_OR_RETURN(what.schedule, reader.RequiredString("schedule"));
  ASSIGN_OR_RETURN(const int64_t earlier,  // the name of the previous release
                   reader.OptionalInt64("microbatches", 0, {.min = 1, .max = kMaxInt}));
  what.micro_batches = static_cast<int>(earlier);
  if (earlier == 0) {
    ASSIGN_OR_RETURN(what.micro_batches, ReadInt(reader, "micro_batches"));
  }
  ASSIGN_OR_RETURN(what.batch, reader.RequiredInt64("batch", {.min = 1}));
  ASSIGN_OR_RETURN(const int64_t threads,
                   reader.RequiredInt64("threads_per_device", {.min = 0, .max = kMaxInt}));
  what.threads = static_cast<int>(threads);
  return what;
}

absl::StatusOr<BenchRow> ReadRow(ObjectReader reader) {
  BenchRow row;
  ASSIGN_OR_RETURN(row.what, ReadCase(reader));
  ASSIGN_OR_RETURN(row.error, reader.OptionalString("error", ""));
  if (!row.error.empty()) {
    RETURN_IF_ERROR(reader.Finish());
    return row;
  }
  ASSIGN_OR_RETURN(const ArrayReader steps, reader.RequiredArray("steps_ms"));
  if (steps.size() == 0) return reader.Error("steps_ms", "must have a step");
  for (size_t i = 0; i < steps.size(); ++i) {
    ASSIGN_OR_RETURN(const double ms, steps.Double(i, {.min = 1e-9}));
    row.steps_ms.push_back(ms);
  }
  constexpr base::DoubleRange kFromZero = {.min = 0.0};
  constexpr base::Int64Range kCount = {.min = 0};
  ASSIGN_OR_RETURN(row.tokens, reader.OptionalInt64("tokens_per_sample", 0, kCount));
  ASSIGN_OR_RETURN(row.predicted_step_ms, reader.OptionalDouble("predicted_step_ms", 0, kFromZero));
  ASSIGN_OR_RETURN(row.flops, reader.OptionalDouble("flops", 0, kFromZero));
  ASSIGN_OR_RETURN(row.peak_flops, reader.OptionalDouble("peak_flops_per_second", 0, kFromZero));
  ASSIGN_OR_RETURN(row.bubble, reader.RequiredDouble("bubble"));
  ASSIGN_OR_RETURN(row.predicted_bubble, reader.OptionalDouble("predicted_bubble", 0));
  ASSIGN_OR_RETURN(row.other_load, reader.OptionalDouble("other_load", 0, {.min = 0, .max = 1}));
  ASSIGN_OR_RETURN(row.peak_bytes, reader.RequiredInt64("peak_bytes", kCount));
  ASSIGN_OR_RETURN(row.predicted_peak_bytes, reader.RequiredInt64("predicted_peak_bytes", kCount));
  ASSIGN_OR_RETURN(row.sent_bytes, reader.RequiredInt64("sent_bytes", kCount));
  ASSIGN_OR_RETURN(row.predicted_sent_bytes, reader.RequiredInt64("predicted_sent_bytes", kCount));
  // They follow from the others.
  for (const char* key :
       {"step_ms", "step_ms_interval", "samples_per_second", "tokens_per_second", "peak_share"}) {
    reader.Has(key);
  }
  RETURN_IF_ERROR(reader.Finish());
  return row;
}

absl::StatusOr<BenchMachine> ReadMachine(ObjectReader reader) {
  BenchMachine machine;
  ASSIGN_OR_RETURN(machine.processor, reader.RequiredString("processor"));
  ASSIGN_OR_RETURN(machine.instruction_set, reader.RequiredString("instruction_set"));
  ASSIGN_OR_RETURN(machine.processors, ReadInt(reader, "processors"));
  ASSIGN_OR_RETURN(machine.memory_bytes, reader.RequiredInt64("memory_bytes", {.min = 0}));
  ASSIGN_OR_RETURN(const ArrayReader gpus, reader.RequiredArray("gpus"));
  for (size_t i = 0; i < gpus.size(); ++i) {
    ASSIGN_OR_RETURN(machine.gpus.emplace_back(), gpus.String(i));
  }
  ASSIGN_OR_RETURN(machine.stagecoach, reader.RequiredString("stagecoach"));
  ASSIGN_OR_RETURN(machine.onednn, reader.RequiredString("onednn"));
  ASSIGN_OR_RETURN(machine.compiler, reader.RequiredString("compiler"));
  ASSIGN_OR_RETURN(machine.date, reader.RequiredString("date"));
  RETURN_IF_ERROR(reader.Finish());
  return machine;
}

absl::StatusOr<BenchResults> ReadResults(ObjectReader reader) {
  ASSIGN_OR_RETURN(const std::string format, reader.RequiredString("format"));
  if (format != kFormat) {
    return reader.Error("format", absl::StrCat("must be \"", kFormat, "\": not a bench's results"));
  }
  RETURN_IF_ERROR(reader.RequiredInt64("version", {.min = kVersion, .max = kVersion}).status());
  BenchResults results;
  ASSIGN_OR_RETURN(ObjectReader machine, reader.RequiredObject("machine"));
  ASSIGN_OR_RETURN(results.machine, ReadMachine(std::move(machine)));
  ASSIGN_OR_RETURN(results.options, reader.RequiredString("options"));
  ASSIGN_OR_RETURN(const ArrayReader files, reader.RequiredArray("files"));
  for (size_t i = 0; i < files.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader file, files.Object(i));
    ASSIGN_OR_RETURN(const std::string name, file.RequiredString("name"));
    ASSIGN_OR_RETURN(results.files[name], file.RequiredString("hash"));
    RETURN_IF_ERROR(file.Finish());
  }
  ASSIGN_OR_RETURN(const ArrayReader rows, reader.RequiredArray("rows"));
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader row, rows.Object(i));
    ASSIGN_OR_RETURN(BenchRow read, ReadRow(std::move(row)));
    if (results.Find(read.what) != nullptr)
      return rows.Error(i, "is of a case that is there twice");
    results.rows.push_back(std::move(read));
  }
  RETURN_IF_ERROR(reader.Finish());
  return results;
}

}  // namespace

std::string FormatMilliseconds(double ms) {
  return ms >= 9999.5 ? base::FormatCount(std::llround(ms)) : absl::StrFormat("%.4g", ms);
}

std::string FormatRate(double per_second) {
  return per_second >= 100 ? base::FormatCount(std::llround(per_second))
                           : absl::StrFormat("%.3g", per_second);
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

BenchInterval MedianInterval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  // The number of n values below the median is binomial with p = 1/2. Leaves out as many on either
  // side as are, in 95 of 100 cases, not all below, or above, the median.
  const auto size = static_cast<double>(n);
  double logarithm = size * std::log(0.5);  // of the probability that `left_out` values are below
  double below = std::exp(logarithm);       // that no more than `left_out` values are below
  size_t left_out = 0;
  for (size_t k = 0; below <= 0.025 && 2 * (k + 1) < n; ++k) {
    left_out = k;
    logarithm += std::log((size - static_cast<double>(k)) / static_cast<double>(k + 1));
    below += std::exp(logarithm);
  }
  return {values[left_out], values[n - 1 - left_out]};
}

BenchMachine InspectBenchMachine() {
  const engine::Machine machine = engine::InspectMachine();
  const dnnl_version_t* const onednn = dnnl_version();
  BenchMachine inspected = {
      .processor = ProcessorName(),
      .instruction_set = machine.instruction_set,
      .processors = machine.processors,
      .memory_bytes = machine.memory_bytes,
      .stagecoach = STAGECOACH_VERSION,
      .onednn = absl::StrCat(onednn->major, ".", onednn->minor, ".", onednn->patch),
      .compiler = __VERSION__,
      .date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())};
  const absl::StatusOr<kernels::CudaBackend*> cuda = kernels::CudaBackend::Load();
  if (!cuda.ok()) return inspected;
  for (const kernels::CudaGpu& gpu : (*cuda)->Inspect().gpus) inspected.gpus.push_back(gpu.name);
  return inspected;
}

std::string ToString(const BenchMachine& machine) {
  return absl::StrCat(machine.processor, ", ", partition::Counted(machine.processors, "processor"),
                      ", ", machine.instruction_set, ", ", base::FormatBytes(machine.memory_bytes),
                      machine.gpus.empty() ? "" : ", ", absl::StrJoin(machine.gpus, ", "),
                      "; stagecoach ", machine.stagecoach, ", oneDNN ", machine.onednn,
                      ", compiler ", machine.compiler, "; ", machine.date);
}

const BenchRow* BenchResults::Find(const BenchCase& what) const {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const BenchRow& one) { return one.what == what; });
  return row == rows.end() ? nullptr : &*row;
}

void BenchResults::Keep(const BenchRow& row) {
  const auto kept = std::find_if(rows.begin(), rows.end(),
                                 [&](const BenchRow& one) { return one.what == row.what; });
  if (kept == rows.end()) {
    rows.push_back(row);
  } else {
    *kept = row;
  }
}

std::vector<BenchCase> BenchResults::cases() const {
  std::vector<BenchCase> cases;
  for (const BenchRow& row : rows) cases.push_back(row.what);
  return cases;
}

bool BenchResults::counts_tokens() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const BenchRow& row) { return row.tokens > 0 || !row.error.empty(); });
}

ordered_json ToJson(const BenchCase& what) {
  return {{"model", what.model},       {"precision", what.precision},
          {"devices", what.devices},   {"replicas", what.replicas},
          {"schedule", what.schedule}, {"micro_batches", what.micro_batches},
          {"batch", what.batch},       {"threads_per_device", what.threads}};
}

ordered_json ToJson(const BenchResults& results) {
  const BenchMachine& machine = results.machine;
  ordered_json rows = ordered_json::array();
  for (const BenchRow& row : results.rows) rows.push_back(RowToJson(row));
  ordered_json files = ordered_json::array();
  for (const auto& [name, hash] : results.files) files.push_back({{"name", name}, {"hash", hash}});
  return {{"format", kFormat},
          {"version", kVersion},
          {"machine",
           {{"processor", machine.processor},
            {"instruction_set", machine.instruction_set},
            {"processors", machine.processors},
            {"memory_bytes", machine.memory_bytes},
            {"gpus", machine.gpus},
            {"stagecoach", machine.stagecoach},
            {"onednn", machine.onednn},
            {"compiler", machine.compiler},
            {"date", machine.date}}},
          {"options", results.options},
          {"files", std::move(files)},
          {"rows", std::move(rows)}};
}

absl::StatusOr<BenchResults> ParseBenchResults(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text));
  const auto read = [&]() -> absl::StatusOr<BenchResults> {
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json));
    return ReadResults(std::move(reader));
  };
  absl::StatusOr<BenchResults> results = read();
  if (!results.ok()) return base::WithJsonPlace(results.status(), text);
  return results;
}

absl::StatusOr<BenchResults> ReadBenchResults(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxFileBytes));
  absl::StatusOr<BenchResults> results = ParseBenchResults(text);
  if (!results.ok()) return base::InFile(results.status(), path);
  return results;
}

}  // namespace stagecoach::tools
