#ifndef STAGECOACH_TESTS_FUZZ_SUPPORT_LARGE_PLAN_H_
#define STAGECOACH_TESTS_FUZZ_SUPPORT_LARGE_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "schedule/generators/generators.h"

namespace stagecoach::fuzz {

// Returns whether a plan names a schedule of so many passes that its proof would take up to a
// minute. It may have millions.
inline bool IsLargePlan(const nlohmann::json& plan) {
  constexpr uint64_t kMaxMicroBatches = 1024;
  if (!plan.is_object()) return false;
  const auto found = plan.find("micro_batches");
  if (found == plan.end() || !found->is_number_unsigned()) return false;
  const uint64_t micro_batches = found->get<uint64_t>();
  return micro_batches > kMaxMicroBatches && micro_batches <= schedule::kMaxPasses;
}

}  // namespace stagecoach::fuzz

#endif  // STAGECOACH_TESTS_FUZZ_SUPPORT_LARGE_PLAN_H_
