#ifndef STAGECOACH_TESTS_PARTITION_REPORT_SAMPLE_EVALUATION_H_
#define STAGECOACH_TESTS_PARTITION_REPORT_SAMPLE_EVALUATION_H_

#include <cstdint>
#include <string>

#include "partition/plan/plan_evaluation.h"

namespace stagecoach::partition {

struct SampleShape {
  int devices = 4;
  int micro_batches = 8;  // of all replicas
  std::string schedule = "zb-h1";
  int layers_per_stage = 5;
  int replicas = 1;                          // of every rank
  int64_t memory_bytes = int64_t{16} << 30;  // per device; 0: no limit
};

// Returns a plan that was not searched for, with an evaluation of plausible numbers: a transformer
// of embedding, equal layers and head, cut evenly, and simulated with its trace. Runner-up and
// changes are invented.
PlanEvaluation SampleEvaluation(const SampleShape& shape = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_TESTS_PARTITION_REPORT_SAMPLE_EVALUATION_H_
