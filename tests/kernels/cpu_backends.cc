// The backends of tests of operations (op_harness.h) in the program for CPU devices.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/precision.h"

namespace stagecoach::testing {
namespace {

OpVariant Threads(int threads, kernels::Precision precision) {
  return {.name = absl::StrCat(threads, threads == 1 ? " thread" : " threads"),
          .create_device = [=] {
            auto device = kernels::CreateCpuDevice({.threads = threads, .precision = precision});
            STAGECOACH_CHECK_OK(device);
            return *std::move(device);
          }};
}

// Sums in 32 lanes, which are then added up.
OpBackend::RowSum RowSumOf(int64_t terms) {
  const int64_t share = terms / 32 + 1;
  return {share, std::min(terms, share + 32)};
}

OpBackend Cpu(const std::string& name, kernels::Precision precision) {
  return {.name = name,
          .precision = precision,
          .available = [=] { return HasOnCpu(precision); },
          .variants = {Threads(1, precision), Threads(3, precision)},
          .row_sum = RowSumOf,
          .is_cpu = true};
}

}  // namespace

std::vector<OpBackend> OpBackends() {
  return {Cpu("cpu_fp32", kernels::Precision::kFloat32),
          Cpu("cpu_bf16", kernels::Precision::kBfloat16)};
}

std::vector<OpBackend> ProductBackends() { return OpBackends(); }

}  // namespace stagecoach::testing
