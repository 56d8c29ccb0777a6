#ifndef STAGECOACH_TESTS_PARTITION_REPORT_SAMPLE_RECEIPT_H_
#define STAGECOACH_TESTS_PARTITION_REPORT_SAMPLE_RECEIPT_H_

#include <cstdint>
#include <string>

#include "partition/plan/receipt.h"

namespace stagecoach::partition {

struct SampleShape {
  int devices = 4;
  int micro_batches = 8;  // of all replicas
  std::string schedule = "zb-h1";
  int layers_per_stage = 5;
  int replicas = 1;                          // of every rank
  int64_t memory_bytes = int64_t{16} << 30;  // of every device; 0: no limit
};

// A plan that was not searched for, with a receipt of plausible numbers: a transformer of
// embedding, equal layers and head, cut evenly, and simulated with its trace. Runner-up and changes
// are made up.
Receipt SampleReceipt(const SampleShape& shape = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_TESTS_PARTITION_REPORT_SAMPLE_RECEIPT_H_
