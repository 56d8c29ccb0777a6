#ifndef STAGECOACH_PARTITION_COST_LAYER_FIELDS_H_
#define STAGECOACH_PARTITION_COST_LAYER_FIELDS_H_

#include <cstdint>

#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {

// The numbers of LayerCost and LayerMemory, for everything that treats them alike: checks, scaling
// to other micro-batch sizes, profiles. What is computed from one of them names it.
struct TimeField {
  const char* name = nullptr;  // in messages
  double LayerCost::*value = nullptr;
  bool scales = true;  // with the micro-batch size
};
inline constexpr TimeField kTimeFields[] = {
    {"forward_ns", &LayerCost::forward_ns},
    {"backward_input_ns", &LayerCost::backward_input_ns},
    {"backward_weight_ns", &LayerCost::backward_weight_ns},
    {"shared_backward_ns", &LayerCost::shared_backward_ns},
    {"step_ns", &LayerCost::step_ns, /*scales=*/false},
    {"flops", &LayerCost::flops},
    {"spread", &LayerCost::spread, /*scales=*/false},
};

enum class InProfile : uint8_t {
  kPlain,  // read and written by its name; 0 where it is absent
  kOwn,    // partition/io/profile_layer.cc has its rule
};
struct BytesField {
  const char* name = nullptr;  // in messages and profiles
  int64_t LayerMemory::*value = nullptr;
  bool scales = true;  // with the micro-batch size
  InProfile in_profile = InProfile::kPlain;
};
inline constexpr BytesField kBytesFields[] = {
    {"parameter_bytes", &LayerMemory::parameter_bytes, /*scales=*/false, InProfile::kOwn},
    {"optimizer_bytes", &LayerMemory::optimizer_bytes, /*scales=*/false, InProfile::kOwn},
    {"averaged_bytes", &LayerMemory::averaged_bytes, /*scales=*/false},
    {"other_resident_bytes", &LayerMemory::other_resident_bytes, /*scales=*/false},
    {"working_bytes", &LayerMemory::working_bytes, /*scales=*/false},
    {"frozen_bytes", &LayerMemory::frozen_bytes, /*scales=*/false},
    {"cache_bytes", &LayerMemory::cache_bytes, /*scales=*/false, InProfile::kOwn},
    {"input_bytes", &LayerMemory::input_bytes, /*scales=*/true, InProfile::kOwn},
    {"output_bytes", &LayerMemory::output_bytes},
    {"passing_bytes", &LayerMemory::passing_bytes},
    {"skip_area_bytes", &LayerMemory::skip_area_bytes},
    {"stash_bytes", &LayerMemory::stash_bytes},
    {"weight_stash_bytes", &LayerMemory::weight_stash_bytes},
    {"gradient_stash_bytes", &LayerMemory::gradient_stash_bytes},
    {"workspace_bytes", &LayerMemory::workspace_bytes},
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_LAYER_FIELDS_H_
