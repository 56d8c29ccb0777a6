#ifndef STAGECOACH_ENGINE_MODEL_CALL_CONTEXT_H_
#define STAGECOACH_ENGINE_MODEL_CALL_CONTEXT_H_

#include <cstdint>

namespace stagecoach::engine {

// Which samples a micro-batch has, as numbers that depend on neither partition nor schedule. With a
// seed and a layer's stream they are the key of a counter-based generator (base/random.h), which
// gives the backward pass what it gave the forward pass.
struct SampleNumbers {
  // Training: the number of the step, from 1 on. Evaluation: how many steps have been done.
  int64_t step = 0;
  // The number of the micro-batch's first sample; the others count on from it. Training: how many
  // samples came before it in all steps so far. Evaluation: its row in the data set, which, of a
  // model with LayerContext::cached_positions, is the position in the sequence.
  int64_t first_sample = 0;
};

// For which run of the model a layer or loss is called.
struct CallContext {
  bool is_training = false;  // rather than evaluation
  // Of all that is random in the model: the same in all calls of a run. With the layer's own stream
  // (LayerContext::random_stream) it names a base::RandomStream.
  uint64_t seed = 0;
  // In the device's memory, which the host can read only where memory_is_host(). A device that
  // records a call issues it again with the arguments of the first time. So a layer gives its
  // operations this address, which stays; what is there changes with the run. Null where something
  // other than an executor calls the layer.
  const SampleNumbers* numbers = nullptr;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_CALL_CONTEXT_H_
