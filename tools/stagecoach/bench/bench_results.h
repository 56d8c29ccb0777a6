#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_RESULTS_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_RESULTS_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/stagecoach/bench/bench_case.h"

namespace stagecoach::tools {

// Returns "698.7", or "12,346" for large values.
std::string FormatMilliseconds(double ms);
// Returns "1,235", or "3.14" for small values.
std::string FormatRate(double per_second);

// An interval between two of the measured values.
struct BenchInterval {
  double low = 0, high = 0;
};

// Returns the middle one of the values, or the mean of the two in the middle. Pre-condition: there
// is one.
double MedianOf(std::vector<double> values);
// Returns a confidence interval of the median of all values that could have been measured: by the
// order of those that were, whatever their distribution (the sign test). With fewer than six, it is
// the smallest and largest, which is less certain. Pre-condition: there is one.
BenchInterval MedianInterval(std::vector<double> values);

// One row: a case, and the times of its steps. Predictions are from before the first step.
struct BenchRow {
  BenchCase what;
  std::string error;  // why it cannot be run; everything else is then unset

  std::vector<double> steps_ms;  // of each counted step, in order
  int64_t tokens = 0;            // of a sample; 0: it has none
  double predicted_step_ms = 0;  // 0: not predicted, and so on
  double flops = 0;              // of the matrix products of a step; 0: unknown
  double peak_flops = 0;         // per second (MatrixPeakFlops); 0: not measured
  double bubble = 0;             // share of the devices' time in which they do not compute
  double predicted_bubble = 0;
  double other_load = 0;  // largest share of the processors that others took meanwhile
  int64_t peak_bytes = 0, predicted_peak_bytes = 0;  // of the fullest device
  int64_t sent_bytes = 0, predicted_sent_bytes = 0;  // of all devices, per step

  double step_ms() const { return MedianOf(steps_ms); }
  double samples_per_second() const { return 1e3 * static_cast<double>(what.batch) / step_ms(); }
  double tokens_per_second() const { return samples_per_second() * static_cast<double>(tokens); }
  double peak_share() const { return peak_flops > 0 ? 1e3 * flops / step_ms() / peak_flops : 0; }
};

// The machine on which a bench was run, and the software.
struct BenchMachine {
  std::string processor, instruction_set;
  int processors = 0;
  int64_t memory_bytes = 0;
  std::vector<std::string> gpus;
  std::string stagecoach, onednn, compiler;  // versions
  std::string date;                          // of the first row, UTC

  friend bool operator==(const BenchMachine&, const BenchMachine&) = default;
};
BenchMachine InspectBenchMachine();

// Returns "AMD EPYC, 2 processors, avx512_core_bf16, 15.6 GB; stagecoach 0.1.0, oneDNN 2.6.3,
// compiler 12.2.0; 2026-11-26".
std::string ToString(const BenchMachine& machine);

struct BenchResults {
  BenchMachine machine;
  std::string options;  // flags that no case covers: "--layers 8"
  // Fingerprints (base/hash.h) of the model and schedule files that cases name.
  std::map<std::string, std::string> files = {};
  std::vector<BenchRow> rows = {};  // of different cases

  const BenchRow* Find(const BenchCase& what) const;  // null: there is none
  void Keep(const BenchRow& row);  // replaces the row of the same case, if there is one
  std::vector<BenchCase> cases() const;
  // Returns whether throughput is in tokens, as it is if all rows have some; otherwise it is in
  // samples.
  bool counts_tokens() const;
  const char* rate_unit() const { return counts_tokens() ? "tokens/s" : "samples/s"; }
  double RateOf(const BenchRow& row) const {
    return counts_tokens() ? row.tokens_per_second() : row.samples_per_second();
  }
};

// Returns {"model", "precision", "devices", "replicas", "schedule", "micro_batches", "batch",
// "threads_per_device"}.
nlohmann::ordered_json ToJson(const BenchCase& what);

// Returns {"format", "version", "machine": {...}, "options", "files", "rows": [{"schedule",
// "step_ms", ...}]}: docs/cli.md lists the keys. Unknown values have none.
nlohmann::ordered_json ToJson(const BenchResults& results);
// Parses what ToJson returns. InvalidArgument says what is wrong, and where.
absl::StatusOr<BenchResults> ParseBenchResults(const std::string& text);
// Reads a file of results. Errors: those of the file system; InvalidArgument as above.
absl::StatusOr<BenchResults> ReadBenchResults(const std::string& path);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_RESULTS_H_
