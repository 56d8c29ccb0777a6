#include "tests/engine/models/networks.h"

#include "engine/stagecoach.h"

namespace stagecoach::engine {

namespace {

// x + attention(x) + mlp(x), as GPT-NeoX has it.
LayerFactory ParallelBlock() {
  const AttentionOptions attention = {.heads = 1, .rotary_base = 100.0F, .rotary_size = 2};
  return Residual({LayerNorm(1e-1F), Linear(12), Attention(attention), Linear(4)},
                  {Residual({LayerNorm(1e-1F), Linear(6, Activation::kGeluExact), Linear(4)})});
}

}  // namespace

std::vector<Network> Networks() {
  constexpr Activation kRelu = Activation::kRelu;
  constexpr Activation kGelu = Activation::kGelu;
  const Shape five{5};
  return {
      {"Linear", five, {Linear(4)}},
      {"LinearOfMatrices", Shape{2, 3}, {Linear(4)}},
      {"LinearRelu", five, {Linear(4, kRelu)}, 4.0F},
      {"LinearGelu", five, {Linear(4, kGelu)}},
      {"LinearGeluExact", five, {Linear(4, Activation::kGeluExact)}},
      {"LinearTanh", five, {Linear(4, Activation::kTanh)}},
      {"LinearSigmoid", five, {Linear(4, Activation::kSigmoid)}},
      {"TanhOfLinear", five, {Linear(4), Tanh(), Linear(3)}},
      {"SigmoidOfMatrices", Shape{2, 3}, {Residual({Linear(3), Sigmoid()})}},
      {"GeluFirst", five, {Activate(kGelu), Linear(3)}},
      {"LinearWithoutBias", five, {Linear(4, Activation::kNone, 1.0F, /*has_bias=*/false)}},
      {"LinearGeluWithoutBias", five, {Linear(6, kGelu), Linear(4, kGelu, 1.0F, false)}},
      {"LayerNorm", five, {LayerNorm()}},
      {"LayerNormOfMatrices", Shape{2, 4}, {LayerNorm(1e-2F)}},
      {"RmsNorm", five, {RmsNorm()}},
      {"RmsNormOfMatrices", Shape{2, 4}, {RmsNorm(1e-2F)}},
      {"HeadNorm", Shape{2, 16}, {HeadNorm({.heads = 2, .kv_heads = 1, .epsilon = 1e-2F})}},
      {"ResidualHeadNorm",
       Shape{3, 4},
       {Residual({Linear(24), HeadNorm({.heads = 2, .epsilon = 1e-1F}), Attention({.heads = 2}),
                  Linear(4)})}},
      {"SwiGlu", Shape{6}, {SwiGlu()}},
      {"SwiGluOfMatrices", Shape{2, 4}, {SwiGlu()}},
      {"ResidualSwiGlu",
       Shape{4},
       {Residual({RmsNorm(1e-2F), Linear(6, Activation::kNone, 1.0F, false), SwiGlu(),
                  Linear(4, Activation::kNone, 1.0F, false)})}},
      {"AddSkip", five, {Linear(4, kGelu), Linear(4), AddSkip()}, 0.0F, 0, false, {{0, 2}}},
      {"ConcatSkip",
       Shape{2, 3},
       {Linear(3, kGelu), Linear(3), ConcatSkip(), Linear(2)},
       0.0F,
       0,
       false,
       {{0, 2}}},
      {"NestedSkips",
       five,
       {Linear(4), Residual({LayerNorm(), Linear(4, kGelu)}), Residual({LayerNorm(), Linear(4)}),
        AddSkip(), ConcatSkip(), LayerNorm(), AddSkip(), Linear(3)},
       0.0F,
       0,
       false,
       {{1, 3}, {0, 4}, {4, 6}}},
      {"Dropout", five, {Dropout(0.5F)}},
      {"DropoutBehindLayers",
       five,
       {Dropout(0.2F), Residual({LayerNorm(), Linear(5, kGelu), Dropout(0.5F)}), Dropout(0.1F)}},
      {"TwoLinear", five, {Linear(6), Linear(3)}},
      {"TwoRelu", five, {Linear(6, kRelu), LayerNorm(), Linear(3, kRelu)}, 4.0F},
      {"ResidualLinear", five, {Residual({Linear(5)})}},
      {"ResidualLinearOfMatrices", Shape{2, 3}, {Residual({Linear(3, kGelu)})}},
      {"ResidualLayerNorm", five, {Residual({LayerNorm()})}},
      {"ResidualRmsNorm", five, {Linear(5), Residual({RmsNorm()})}},
      {"ResidualRmsBlocks",
       five,
       {Residual({RmsNorm(), Linear(5, kGelu)}), Residual({RmsNorm(), Linear(5)}), RmsNorm()}},
      {"ResidualReluLast", five, {Residual({LayerNorm(), Linear(5, kRelu)})}, 4.0F},
      {"ResidualReluOnly", five, {Residual({Linear(5, kRelu)})}, 4.0F},
      {"ResidualReluFirst", five, {Residual({Linear(7, kRelu), Linear(5)})}, 4.0F},
      {"ResidualBlock", five, {Residual({LayerNorm(), Linear(5, kGelu)})}},
      {"ResidualBottleneck", five, {Residual({LayerNorm(), Linear(2, kGelu), Linear(5)})}},
      {"ResidualInResidual", five, {Residual({LayerNorm(), Residual({Linear(5, kGelu)})})}},
      {"ResidualInResidualFirst",
       five,
       {Residual({Residual({LayerNorm(), Linear(5, kRelu)}), Linear(5)})},
       4.0F},
      {"ResidualThreeDeep",
       five,
       {Residual({Residual({Residual({Linear(5)}), LayerNorm()}), Linear(5, kGelu)})}},
      {"TwoResidualBlocks",
       five,
       {Residual({LayerNorm(), Linear(5, kGelu)}), Residual({LayerNorm(), Linear(5, kRelu)})},
       4.0F},
      {"Attention", Shape{3, 12}, {Attention({.heads = 2})}},
      {"AttentionOfGroups", Shape{4, 16}, {Attention({.heads = 4, .kv_heads = 2})}},
      {"AttentionRotary",
       Shape{3, 16},
       {Attention({.heads = 2, .kv_heads = 1, .rotary_base = 100.0F})}},
      {"AttentionBetweenLinear",
       Shape{3, 4},
       {Linear(12), Attention({.heads = 2, .rotary_base = 100.0F}), Linear(3)}},
      {"ResidualAttention",
       Shape{3, 4},
       {Residual({LayerNorm(), Linear(12), Attention({.heads = 2}), Linear(4)})}},
      {"ResidualAttentionLast", Shape{3, 4}, {Residual({Linear(12), Attention({.heads = 2})})}},
      {"AttentionBlock",
       Shape{3, 4},
       {Residual({LayerNorm(), Linear(8), Attention({.heads = 2, .kv_heads = 1}), Linear(4)}),
        Residual({LayerNorm(), Linear(6, kGelu), Linear(4)})}},
      {"ParallelBlocks", Shape{3, 4}, {Linear(4), ParallelBlock(), ParallelBlock(), LayerNorm()}},
      {"AllKinds",
       five,
       {Linear(6, kGelu), Residual({LayerNorm(), Linear(6, kRelu)}), LayerNorm(), Linear(4, kRelu),
        Linear(3)},
       4.0F},
      // Some ids occur several times, some never.
      {"Embedding", Shape{4}, {Embedding({.vocabulary = 7, .features = 3})}, 0.0F, 7},
      {"EmbeddingWithPositions",
       Shape{4},
       {Embedding({.vocabulary = 7, .features = 3, .positions = true})},
       0.0F,
       7},
      {"EmbeddingFirst",
       Shape{2},
       {Embedding({.vocabulary = 3, .features = 5, .positions = true}),
        Residual({Linear(5, kGelu)}), Linear(2)},
       0.0F,
       3},
  };
}

}  // namespace stagecoach::engine
