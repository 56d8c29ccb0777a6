#ifndef STAGECOACH_ENGINE_NN_CALL_CONTEXT_H_
#define STAGECOACH_ENGINE_NN_CALL_CONTEXT_H_

#include <cstdint>

#include "kernels/cached_row.h"

namespace stagecoach::engine {

// Numbers that identify a micro-batch's samples, and depend on neither partition nor schedule. With
// a seed and a layer's stream they are the key of a counter-based generator (base/random.h), which
// produces the same values in the backward pass as in the forward pass.
struct SampleNumbers {
  // Training: the number of the step, from 1 on. Evaluation: the number of steps completed.
  int64_t step = 0;
  // The number of the micro-batch's first sample; the others count on from it. Training: how many
  // samples came before it in all steps so far. Evaluation: its row in the data set.
  int64_t first_sample = 0;
};

// Describes the run of the model in which a layer or loss is called.
struct CallContext {
  bool is_training = false;  // rather than evaluation
  // The seed of everything random in the model: the same in all calls of a run. With the layer's
  // own stream (LayerContext::random_stream) it names a base::RandomStream.
  uint64_t seed = 0;
  // Address in the device's memory, which the host can read only if memory_is_host(). A device that
  // records a call issues it again with the arguments of the first time, so a layer passes this
  // address, which is constant, to its operations; the numbers behind it change during the run.
  // Null if something other than an executor calls the layer.
  const SampleNumbers* numbers = nullptr;
  // Likewise, with LayerContext::cached_positions alone: of each row of the micro-batch.
  const kernels::CachedRow* rows = nullptr;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_CALL_CONTEXT_H_
