#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_TRAINED_PIECE_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_TRAINED_PIECE_H_

#include <cstdint>

#include "engine/nn/parameter_table.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Stands for the parameter's value in place of the number of an optimizer's state.
inline constexpr int kTrainedValue = -1;

// Consecutive elements of what a run keeps of one parameter: of its value, or of one of the states
// that the optimizer keeps for it. All pieces of all parameters are what a run must keep to resume;
// a device has some of them.
struct TrainedPiece {
  ParameterId parameter;  // the original, if this is of a copy
  bool is_copy = false;   // the original is trained as well, possibly elsewhere
  int state = kTrainedValue;
  int64_t first = 0;  // index of its first element in the parameter, as that is stored (BlockOrder)
  // (n) float32, in the device's memory; of a stage that does not train, and of a frozen parameter,
  // in the form that layers read, which may be all bytes of a quantized matrix.
  kernels::Tensor tensor;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_TRAINED_PIECE_H_
