#ifndef STAGECOACH_TESTS_TOOLS_BENCH_SAMPLE_RESULTS_H_
#define STAGECOACH_TESTS_TOOLS_BENCH_SAMPLE_RESULTS_H_

#include <string>
#include <utility>
#include <vector>

#include "tools/stagecoach/bench/bench_results.h"

namespace stagecoach::tools {

// Returns a row of 64 samples a step, whose products reach half of a peak of 1 GFLOP/s at 100 ms.
inline BenchRow SampleRow(const std::string& schedule, int devices, std::vector<double> steps_ms) {
  return {.what = {.model = "default",
                   .devices = devices,
                   .schedule = schedule,
                   .micro_batches = 8,
                   .batch = 64},
          .steps_ms = std::move(steps_ms),
          .predicted_step_ms = 90,
          .flops = 5e7,
          .peak_flops = 1e9,
          .bubble = 0.25,
          .predicted_bubble = 0.125,
          .peak_bytes = 2'000'000,
          .predicted_peak_bytes = 2'000'000,
          .sent_bytes = 1000,
          .predicted_sent_bytes = 1000};
}

inline BenchRow BrokenRow(const std::string& schedule) {
  return {.what = {.model = "default",
                   .devices = 2,
                   .schedule = schedule,
                   .micro_batches = 8,
                   .batch = 64},
          .error = "it needs \"more\", always"};
}

inline BenchResults SampleResults(std::vector<BenchRow> rows) {
  return {.machine = {.processor = "Abacus",
                      .instruction_set = "avx2",
                      .processors = 2,
                      .memory_bytes = 16'000'000'000,
                      .gpus = {"NVIDIA H200"},
                      .stagecoach = "0.1.0",
                      .onednn = "2.6.3",
                      .compiler = "12.2.0",
                      .date = "2026-11-26"},
          .options = "--layers 8",
          .rows = std::move(rows)};
}

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_BENCH_SAMPLE_RESULTS_H_
