#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TENSOR_DIFFERENCE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TENSOR_DIFFERENCE_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/checkpoint/compare.h"

// How commands tell of the tensors in which two checkpoints differ.
namespace stagecoach::tools {

// That all that are in both have the same bits; or how many differ, and in the first of them from
// which element on: two lines.
std::string DescribeTensors(const engine::CheckpointDifference& difference);

// An object with all of them.
nlohmann::ordered_json DifferenceToJson(const engine::CheckpointDifference& difference);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TENSOR_DIFFERENCE_H_
