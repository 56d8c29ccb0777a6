#ifndef STAGECOACH_PARTITION_IO_TRANSFORMER_TIMES_H_
#define STAGECOACH_PARTITION_IO_TRANSFORMER_TIMES_H_

#include <cstdint>

#include "partition/cost/layer_cost.h"
#include "partition/io/transformer.h"

namespace stagecoach::partition {

// Set the times and flops of the layers of a transformer. Dimension letters are those of
// transformer.h; b is the samples of one of the e groups, g = 2 for SwiGLU and else 1. A pass takes
// the sum of three parts:
//
//  - Products, at device_teraflops; those of attention, whose sizes do not depend on h, as they
//    are, all others divided by the share of the device that they fill. Flash attention with a
//    window leaves out scores in proportion to the earlier positions outside. With experts, those
//    of the
//    perceptron are E / e products, of K c s b e / E tokens each, in the same waves.
//  - Operations bound by memory, at memory_gigabytes_per_second. Bytes per value, for w bytes each;
//    "+" with dropout, whose masks take 1 byte:
//                                            F                  B
//      norms, residuals: s b h               10 w     + 2       12 w     + 4 w + 2   (divided by t
//      if activation function: s b f / t        (g + 1) w          (2 g + 1) w           sequence-
//      rotation: s b (a + k) d / t           2 w                2 w                   parallel)
//      scores, unless flash: a s^2 b / t     4 w      + 2 w + 1 7 w      + 2 w + 1   (and F's if
//      logits: s b V / t                     2 w + 4            w + 4                 recomputed)
//      embedding: s b h                      2 w      + w + 1   3 w in W  (divided as norms are;
//                                                                          w more for a table)
//      experts' tokens: K c s b h            3 w                4 w       (divided as norms are,
//                                                                          and w s b h more)
//    The optimizer reads and writes its state and the parameter, and reads the gradient, twice.
//  - Messages, reduced by tensor_overlap. Among the t devices all-reduces of w s b h bytes: two in
//    F and in B of a layer (Shoeybi et al. 2019, "Megatron-LM"), one in F of the embedding, and one
//    in B of the head. Each is a reduce-scatter and an all-gather, of (t - 1) / t of the bytes
//    each, sequence-parallel or not; if so, W has one more all-gather for each, since devices have
//    kept a part of what it multiplies (Korthikanti et al. 2022, who hide them; the times of their
//    table 4 are 0.8 ms longer than norms and dropout on a part would take, and these gathers take
//    0.75). With experts, one of those in F and B has K c s b tokens, and there are two all-to-all
//    each of w K c s b h (e - 1) / e bytes, divided as norms are (Lepikhin et al. 2020, "GShard");
//    once per step the gradients of everything else are summed over the e groups.
void SetEmbeddingTimes(const Transformer& transformer, int64_t rows, LayerCost& layer);
// `index`: of the layer among those between the embedding and the head, from 0.
void SetLayerTimes(const Transformer& transformer, int64_t rows, int64_t index, LayerCost& layer);
void SetHeadTimes(const Transformer& transformer, int64_t rows, LayerCost& layer);

// Returns the time and flops of the operators of a layer that selective recomputation repeats.
RepeatedPart RepeatedTimes(const Transformer& transformer, int64_t rows);

// Return what the busiest group of tensor_parallel devices has of a micro-batch of size `rows`:
// tokens, and pairs of a token and an expert that processes it.
int64_t TokensOfGroup(const Transformer& transformer, int64_t rows);
int64_t PairsOfGroup(const Transformer& transformer, int64_t rows);

// Returns the share of a device that N products with that many rows and columns fill: their values
// divided by those of their waves, each of kTileRows * kTileColumns for every multiprocessor. 1
// without multiprocessors.
double ShareFilled(int64_t rows, int64_t columns, int64_t multiprocessors, int64_t products = 1);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_TRANSFORMER_TIMES_H_
