#ifndef STAGECOACH_ENGINE_STAGE_TRAINED_PIECE_H_
#define STAGECOACH_ENGINE_STAGE_TRAINED_PIECE_H_

#include <cstdint>

#include "engine/model/parameter_table.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Instead of the number of an optimizer's state: the parameter's value.
inline constexpr int kTrainedValue = -1;

// Consecutive elements of what training changes of one parameter: of its value, or of one of the
// states that the optimizer keeps for it. All pieces of all parameters are what a run must keep to
// go on; a device has some of them.
struct TrainedPiece {
  ParameterId parameter;  // the original, if this is of a copy
  bool is_copy = false;   // the original is trained as well, maybe elsewhere
  int state = kTrainedValue;
  int64_t first = 0;  // which element of the parameter it begins with
  // (n) float32, where the device has them; of a stage that does not train, as layers read it.
  kernels::Tensor tensor;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_TRAINED_PIECE_H_
