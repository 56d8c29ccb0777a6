#ifndef STAGECOACH_ENGINE_MODEL_CALL_CONTEXT_H_
#define STAGECOACH_ENGINE_MODEL_CALL_CONTEXT_H_

#include <cstdint>

namespace stagecoach::engine {

// Which samples a micro-batch has, as numbers that depend on neither partition nor schedule. With a
// seed and a layer they key a counter-based generator (base/random.h): what it gave in the forward
// pass, it gives again in the backward pass.
struct SampleNumbers {
  // Training: the number of the step, from 1 on. Evaluation: how many steps have been done.
  int64_t step = 0;
  // Of the micro-batch's first sample; those of the others follow. Training: how many samples all
  // steps and micro-batches before it had. Evaluation: its row in the data set.
  int64_t first_sample = 0;
};

// For which run of the model a layer or loss is called.
struct CallContext {
  bool is_training = false;  // rather than evaluation
  // In the device's memory, which a layer may read on the host only where memory_is_host(). A
  // device that records a call issues it again with the arguments that it had then, so operations
  // must be given this address: it stays, and what is there is of the run at hand. Null only where
  // a layer is called by something else than an executor.
  const SampleNumbers* numbers = nullptr;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_CALL_CONTEXT_H_
