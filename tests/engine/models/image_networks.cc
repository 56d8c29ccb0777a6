#include "engine/stagecoach.h"
#include "tests/engine/models/networks.h"

namespace stagecoach::engine {
namespace {

Conv2dOptions Conv(int64_t outputs, int64_t kernel, int64_t stride = 1) {
  return {.outputs = outputs,
          .kernel = kernel,
          .stride = stride,
          .padding = kernel / 2,
          .has_bias = false};
}

// Returns the block of a ResNet, with a projection on the shortcut where the shape changes.
LayerFactory Block(int64_t inputs, int64_t outputs, int64_t stride) {
  const LayerFactory norm = BatchNorm({.epsilon = 0.1F});
  std::vector<LayerFactory> shortcut;
  if (inputs != outputs) shortcut = {Conv2d(Conv(outputs, 1, stride)), norm};
  return Residual({Conv2d(Conv(outputs, 3, stride)), norm, Relu(), Conv2d(Conv(outputs, 3)), norm},
                  std::move(shortcut), /*relu=*/true);
}

}  // namespace

std::vector<Network> ImageNetworks() {
  const Shape image{2, 4, 4};
  const Shape last = image.InOrder(kernels::ImageOrder::kChannelsLast);
  const LayerFactory norm = BatchNorm({.epsilon = 0.1F});
  return {
      {"Conv2d", image, {Conv2d({.outputs = 3, .kernel = 3, .stride = 2, .padding = 1})}},
      {"Conv2dInGroups",
       image,
       {Conv2d({.outputs = 4, .kernel = 2, .groups = 2, .has_bias = false})}},
      {"Conv2dBehindLayers", image, {Conv2d(Conv(3, 1)), Conv2d(Conv(2, 3)), Flatten(), Linear(3)}},
      {"MaxPool", image, {MaxPool({})}, 0.0F, 0, true},
      {"MaxPoolOverlapping",
       Shape{2, 5, 5},
       {MaxPool({.kernel = 3, .stride = 2, .padding = 1}), Flatten(), Linear(3)},
       0.0F,
       0,
       true},
      {"AvgPool",
       image,
       {AvgPool({.kernel = 3, .stride = 1, .padding = 1}), GlobalAvgPool(), Linear(2)}},
      {"GlobalAvgPool", image, {Conv2d(Conv(3, 1)), GlobalAvgPool(), Linear(2)}},
      {"GroupNorm", image, {GroupNorm(1, 0.1F)}},
      {"GroupNormOfChannels", Shape{4, 3, 2}, {Conv2d(Conv(4, 1)), GroupNorm(2, 0.1F)}},
      {"BatchNorm", image, {norm}},
      {"BatchNormBehindLayers", image, {Conv2d(Conv(3, 3)), norm, GlobalAvgPool(), Linear(2)}},
      {"Relu", image, {Relu()}, 0.0F, 0, true},
      {"ConvReluBlock",
       Shape{2, 3, 3},
       {Conv2d({.outputs = 4, .kernel = 3, .padding = 1}), Relu(), Conv2d(Conv(2, 1))},
       4.0F},
      {"FlattenFirst", Shape{2, 2, 1}, {Flatten(), Linear(3)}},
      {"ResidualConv", image, {Residual({Conv2d(Conv(2, 3))})}},
      {"ResidualWithShortcut",
       image,
       {Residual({Conv2d(Conv(4, 3, 2)), norm}, {Conv2d(Conv(4, 1, 2))}), GlobalAvgPool()}},
      {"ResidualWithShortcutOfLinear",
       Shape{5},
       {Residual({LayerNorm(), Linear(3)}, {Linear(3, Activation::kGelu)})}},
      // The branches read their outputs again, which the sum overwrites.
      {"ResidualOfReluWithShortcutOfRelu",
       Shape{5},
       {Residual({Linear(4, Activation::kRelu)}, {Linear(4, Activation::kRelu)}), Linear(2)},
       4.0F},
      {"BranchesOfConv",
       image,
       {Branches({{Conv2d(Conv(3, 3)), norm}, {Conv2d(Conv(3, 1))}, {Conv2d(Conv(3, 3))}}),
        GlobalAvgPool(), Linear(2)}},
      {"ResidualRelu", image, {Residual({Conv2d({.outputs = 2, .kernel = 1})}, {}, true)}, 8.0F},
      {"ResidualReluOfLayerNorm", Shape{5}, {Residual({LayerNorm(), Linear(5)}, {}, true)}, 8.0F},
      {"ResNetBlocks", image, {Block(2, 2, 1), Block(2, 4, 2), GlobalAvgPool(), Linear(2)}, 4.0F},
      // Layers on a CPU device take channels first.
      {"Conv2dOfChannelsLast", last, {Conv2d({.outputs = 3, .kernel = 3, .padding = 1})}},
      {"FlattenOfChannelsLast", last, {Flatten(), Linear(3)}},
      {"LinearOfChannelsLast", last, {LayerNorm(), Linear(3, Activation::kGelu)}},
      {"ResidualOfChannelsLast", last, {Residual({Conv2d(Conv(2, 3))}), Flatten(), Linear(3)}},
      {"ResidualOfChannelsLastWithShortcut",
       last,
       {Residual({Conv2d(Conv(4, 3, 2)), norm}, {Conv2d(Conv(4, 1, 2))}), GlobalAvgPool()}},
      {"BranchesOfChannelsLast",
       last,
       {Branches({{Conv2d(Conv(3, 3)), norm}, {Conv2d(Conv(3, 1))}}), GlobalAvgPool(), Linear(2)}},
      {"ResidualReluOfChannelsLast",
       last,
       {Residual({Conv2d({.outputs = 2, .kernel = 1})}, {}, true)},
       8.0F},
      {"ConcatSkipOfChannelsLast",
       last,
       {Activate(Activation::kGelu), Activate(Activation::kGelu), ConcatSkip(), Conv2d(Conv(3, 3))},
       0.0F,
       0,
       false,
       {{0, 2}}},
      {"SkipsOfAnotherOrder",
       last,
       {Activate(Activation::kGelu), Conv2d(Conv(2, 3)), AddSkip(), Conv2d(Conv(2, 3)),
        ConcatSkip(), GlobalAvgPool(), Linear(2)},
       0.0F,
       0,
       false,
       {{0, 2}, {2, 4}}},
  };
}

}  // namespace stagecoach::engine
