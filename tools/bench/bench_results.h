#ifndef STAGECOACH_TOOLS_BENCH_BENCH_RESULTS_H_
#define STAGECOACH_TOOLS_BENCH_BENCH_RESULTS_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/bench_case.h"

namespace stagecoach::tools {

// "698.7", or "12,346" of long ones.
std::string FormatMilliseconds(double ms);
// "1,235", or "3.14" of small ones.
std::string FormatRate(double per_second);

// Two of the measured values.
struct BenchInterval {
  double low = 0, high = 0;
};

// The middle one of the values, or the mean of the two in the middle. Pre-condition: there is one.
double MedianOf(std::vector<double> values);
// Where the median of all values lies that could have been measured: by the order of those that
// were, whatever their distribution (the sign test). Of fewer than six, the smallest and largest,
// which is less certain. Pre-condition: there is one.
BenchInterval MedianInterval(std::vector<double> values);

// One row: a case, and what its steps took. Predictions are from before the first step.
struct BenchRow {
  BenchCase what;
  std::string error;  // why it cannot be run; then there is nothing else

  std::vector<double> steps_ms;  // of each step that counts, in order
  int64_t tokens = 0;            // of a sample; 0: it has none
  double predicted_step_ms = 0;  // 0: not predicted, and so on
  double flops = 0;              // of the matrix products of a step; 0: unknown
  double peak_flops = 0;         // a second (MatrixPeakFlops); 0: not measured
  double bubble = 0;             // share of the devices' time in which they do not compute
  double predicted_bubble = 0;
  double other_load = 0;  // share of the processors that others took meanwhile, at most
  int64_t peak_bytes = 0, predicted_peak_bytes = 0;  // of the fullest device
  int64_t sent_bytes = 0, predicted_sent_bytes = 0;  // of all devices, in a step

  double step_ms() const { return MedianOf(steps_ms); }
  double samples_per_second() const { return 1e3 * static_cast<double>(what.batch) / step_ms(); }
  double tokens_per_second() const { return samples_per_second() * static_cast<double>(tokens); }
  double peak_share() const { return peak_flops > 0 ? 1e3 * flops / step_ms() / peak_flops : 0; }
};

// Where a bench was run, and by what.
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

// "AMD EPYC, 2 processors, avx512_core_bf16, 15.6 GB; stagecoach 0.1.0, oneDNN 2.6.3, compiler
// 12.2.0; 2026-11-26".
std::string ToString(const BenchMachine& machine);

struct BenchResults {
  BenchMachine machine;
  std::string options;  // flags that no case says: "--layers 8"
  // Fingerprints (base/hash.h) of the model and schedule files that cases name.
  std::map<std::string, std::string> files = {};
  std::vector<BenchRow> rows = {};  // of different cases

  const BenchRow* Find(const BenchCase& what) const;  // null: there is none
  void Keep(const BenchRow& row);  // in place of the one of its case, if there is one
  std::vector<BenchCase> cases() const;
  // Throughput is in tokens if all rows have some, and in samples otherwise.
  bool counts_tokens() const;
  const char* rate_unit() const { return counts_tokens() ? "tokens/s" : "samples/s"; }
  double RateOf(const BenchRow& row) const {
    return counts_tokens() ? row.tokens_per_second() : row.samples_per_second();
  }
};

// {"model", "precision", "devices", "replicas", "schedule", "microbatches", "batch",
// "threads_per_device"}.
nlohmann::ordered_json ToJson(const BenchCase& what);

// {"format", "version", "machine": {...}, "options", "files", "rows": [{"schedule", "step_ms",
// ...}]}: docs/bench.md lists the keys. What is unknown has none.
nlohmann::ordered_json ToJson(const BenchResults& results);
// The reverse. InvalidArgument says what is wrong, and where.
absl::StatusOr<BenchResults> ParseBenchResults(const std::string& text);
// Errors: those of the file system; InvalidArgument as above.
absl::StatusOr<BenchResults> ReadBenchResults(const std::string& path);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_BENCH_BENCH_RESULTS_H_
