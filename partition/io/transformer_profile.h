#ifndef STAGECOACH_PARTITION_IO_TRANSFORMER_PROFILE_H_
#define STAGECOACH_PARTITION_IO_TRANSFORMER_PROFILE_H_

#include <cstdint>
#include <string>

#include "partition/cost/profile.h"
#include "partition/io/transformer.h"

namespace stagecoach::partition {

// Returns what one layer keeps from F until its backward pass, its input included, on one device:
// Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", table
// 2. For w = 2 and a GPT
//   s b h (10 + 24 / t + 5 a s / (h t))       (without parallelism s b h (34 + 5 a s / h))
//   s b h (34 + 5 a s / h) / t                with sequence_parallel
// with the term of a only if attention is stored. Counted in the same way, for any transformer:
//   s b (4 w h + w (2 a + 2 k) d / t + w (g + 1) f / t + (2 w + 1) a s / t)
// with g = 2 for SwiGLU and else 1; without dropout w replaces 2 w + 1, and with it masks of 1 byte
// add 2 s b h. With experts K c s b (2 w h + w (g + 1) f / t) replaces the term of f, c being the
// capacity_factor, and the router adds 8 s b E. Shared sizes are rounded up.
int64_t ActivationBytes(const Transformer& transformer, int64_t rows);

// Returns the layers "embedding", "layer0", "layer1", ..., "head". Pre-condition: CheckTransformer.
//
// Between them passes w s b h, divided by t with sequence_parallel. Of what a layer keeps, the
// inputs of its products (7 w s b h in a GPT) are kept until W, and the gradients of their outputs
// from B until W (9 w s b h; together the 32 s b h of Qi et al. 2023, "Zero Bubble Pipeline
// Parallelism", for w = 2). It may repeat F (Recompute): all of it, keeping only its input, or some
// operators, if they leave anything. The embedding's dropout keeps a mask; the head keeps its
// norm's input and output and the logits in 4 bytes (4 s b h (1 + V / h) as published by
// Korthikanti et al.). If it uses the embedding's table, its copy takes memory, but is not counted
// in its parameters.
//
// Times: transformer_times.h. Without device_multiprocessors, memory_gigabytes_per_second and
// links, times are flops divided by the speed of the devices; embedding and optimizer then take
// none.
Profile TransformerProfile(const Transformer& transformer, std::string model);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_TRANSFORMER_PROFILE_H_
