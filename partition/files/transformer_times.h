#ifndef STAGECOACH_PARTITION_FILES_TRANSFORMER_TIMES_H_
#define STAGECOACH_PARTITION_FILES_TRANSFORMER_TIMES_H_

#include <cstdint>

#include "partition/files/transformer_profile.h"
#include "partition/layer_cost.h"

namespace stagecoach::partition {

// Set the times and flops of the layers of a transformer. Dimension letters are those of
// transformer_profile.h. A pass takes the sum of three parts:
//
//  - Products, at device_teraflops; those of attention, whose sizes do not depend on h, as they
//    are, all others divided by the share of the device that they fill.
//  - What is bound by memory, at memory_gigabytes_per_second. Bytes per value, for w bytes each and
//    masks of 1 byte:
//                                             F          B
//      norms, dropout, residuals: s b h       10 w + 2   16 w + 2   (divided by t if sequence-
//      activation function: s b h / t          8 w       12 w        parallel)
//      scores, unless flash: a s^2 b / t       6 w + 1    9 w + 1   (and 6 w + 1 if recomputed)
//      logits: s b V / t                       2 w + 4    w + 4
//      embedding: s b h                        3 w + 1    3 w in W  (divided as norms are)
//    The optimizer reads and writes its state and the parameter, and reads the gradient, twice.
//  - All-reduces of w s b h bytes among the t devices: two in F and in B of a layer (Shoeybi et al.
//    2019, "Megatron-LM"), one in F of the embedding, and one in B of the head. Each is a reduce-
//    scatter and an all-gather, of (t - 1) / t of the bytes each, whether or not
//    sequence-parallel (Korthikanti et al. 2022).
void SetEmbeddingTimes(const Transformer& transformer, int64_t rows, LayerCost& layer);
void SetLayerTimes(const Transformer& transformer, int64_t rows, LayerCost& layer);
void SetHeadTimes(const Transformer& transformer, int64_t rows, LayerCost& layer);

// Of a device, that a product with that many rows and columns fills: its values over those of its
// waves, each of kTileRows * kTileColumns for every multiprocessor. 1 without multiprocessors.
double ShareFilled(int64_t rows, int64_t columns, int64_t multiprocessors);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_FILES_TRANSFORMER_TIMES_H_
