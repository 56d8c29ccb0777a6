#ifndef STAGECOACH_ENGINE_NN_LAYERS_LAYERS_H_
#define STAGECOACH_ENGINE_NN_LAYERS_LAYERS_H_

// All layers.
#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/branches.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/composite/tensor_blocks.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/head.h"
#include "engine/nn/layers/head_norm.h"
#include "engine/nn/layers/image/conv2d.h"
#include "engine/nn/layers/image/flatten.h"
#include "engine/nn/layers/image/image_norm.h"
#include "engine/nn/layers/image/pooling.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/skip.h"
#include "engine/nn/layers/swiglu.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

extern const LayerType kSequenceType;

// The types of layers in model files (engine/models/model_file.h), with their keys and defaults. A
// header above describes each. There is a type for each activation, too (kActivationTypes): { type
// = "relu" }.
inline constexpr const LayerType* kLayerTypes[] = {
    // { type = "linear", outputs = 512, activation = "none", bias = true, deviation = 0.02,
    //   parts = ["q_proj", "k_proj", "v_proj"] }: outputs has no default, and may be "classes": as
    // many as the data has, 1 if the labels are numbers; deviation is that of normal weights,
    // uniform ones are the default; parts are names of equal shares of the outputs, for adapters
    // (lora.h has the default).
    &kLinearType,
    // { type = "layer_norm", epsilon = 1e-5 }, { type = "rms_norm", epsilon = 1e-5 }
    &kLayerNormType,
    &kRmsNormType,
    // { type = "residual", layers = [...], shortcut = [...], relu = false }: the default shortcut
    // is the input; relu is that of the sum.
    &kResidualType,
    // { type = "branches", branches = [[...], [...]] }: the sum of the outputs of each list of
    // layers, all on the same input.
    &kBranchesType,
    // { type = "tensor_blocks", blocks = 4, layers = [...] }: two linear layers, with attention,
    // swiglu, geglu or nothing between them, in blocks that several devices can share. A table
    // [tensor] of the file makes them.
    &kTensorBlocksType,
    // { type = "sequence", layers = [...] }: these, one after the other, between which a cut may
    // fall: to be repeated.
    &kSequenceType,
    // { type = "embedding", vocabulary = 50257, features = 768, positions = false,
    //   token_deviation = 0.02, position_deviation = 0.02, scale = 1.0 }: a vocabulary may be
    // "classes"; positions is true, or as many as its table has; position_offset = 0: that many
    // before these; scale multiplies the tokens' vectors.
    &kEmbeddingType,
    // { type = "attention", heads = 12, kv_heads = 12, rotary_base = 0, rotary_scaling =
    //   { type = "linear", factor = 8.0, original_context = 0, low_turns = 1.0, high_turns = 4.0 },
    //   rotary_size = 64, window = 512, scale = 0.125, score_cap = 50.0 }: heads has no default,
    // kv_heads is as heads; without rotary_scaling, a factor of 1, and other types of it have other
    // keys (engine/nn/layers/rotary.h); without rotary_size, all numbers
    // of a head; without window, all positions before; without scale, 1 / sqrt(numbers of a head);
    // without score_cap, none.
    &kAttentionType,
    // { type = "head_norm", heads = 12, kv_heads = 12, epsilon = 1e-5 }: before attention; heads
    // has no default, kv_heads is as heads.
    &kHeadNormType,
    // { type = "swiglu" }, { type = "geglu" }
    &kSwiGluType,
    &kGeGluType,
    // { type = "dropout", rate = 0.1 }: no default
    &kDropoutType,

    // Of images [channels, height, width]:
    // { type = "conv2d", outputs = 64, kernel = 3, stride = 1, padding = 0, groups = 1,
    //   bias = true }: outputs and kernel have no default.
    &kConv2dType,
    // { type = "max_pool", kernel = 2, stride = 2, padding = 0 }, and so "avg_pool": the stride is
    // the kernel by default; { type = "global_avg_pool" }
    &kMaxPoolType,
    &kAvgPoolType,
    &kGlobalAvgPoolType,
    // { type = "group_norm", groups = 32, epsilon = 1e-5 }: groups has no default.
    &kGroupNormType,
    // { type = "batch_norm", momentum = 0.1, epsilon = 1e-5 }
    &kBatchNormType,
    // { type = "flatten" }
    &kFlattenType,

    // { type = "add_skip", from = "down" }, { type = "concat_skip", from = "down" }: from is the
    // name of a layer before, whose output it reads: name = "down" (any may have one; the last of
    // a repeated one).
    &kAddSkipType,
    &kConcatSkipType,
    // { type = "head", deviation = 0.02, tied = false, logit_cap = 30.0 }: the last layer, in place
    // of linear and its loss; tied: to the table of layer 0, an embedding; without logit_cap,
    // logits are any numbers.
    &kHeadType,
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_LAYERS_H_
