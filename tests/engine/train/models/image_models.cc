#include "tests/engine/train/models/image_models.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/image/conv2d.h"
#include "engine/nn/layers/image/image_norm.h"
#include "engine/nn/layers/image/pooling.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/skip.h"
#include "tests/engine/train/runs/reference_run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

LayerFactory Conv(int64_t outputs, int64_t kernel, int64_t stride) {
  return Conv2d({.outputs = outputs,
                 .kernel = kernel,
                 .stride = stride,
                 .padding = kernel / 2,
                 .has_bias = false});
}

// Returns a block of a ResNet; if the number of channels changes, its shortcut is a projection.
LayerFactory ResNetBlock(int64_t inputs, int64_t outputs, int64_t stride) {
  std::vector<LayerFactory> shortcut;
  if (inputs != outputs) shortcut = {Conv(outputs, 1, stride), BatchNorm()};
  return Residual({Conv(outputs, 3, stride), BatchNorm(), Relu(), Conv(outputs, 3, 1), BatchNorm()},
                  shortcut, /*relu=*/true);
}

// Returns a block that begins and ends with a convolution of one element.
LayerFactory BottleneckBlock(int64_t inputs, int64_t outputs, int64_t stride) {
  std::vector<LayerFactory> shortcut;
  if (inputs != outputs) shortcut = {Conv(outputs, 1, stride), BatchNorm()};
  return Residual({Conv(outputs / 2, 1, 1), BatchNorm(), Relu(), Conv(outputs / 2, 3, stride),
                   BatchNorm(), Relu(), Conv(outputs, 1, 1), BatchNorm()},
                  shortcut, /*relu=*/true);
}

// Returns the tolerance. In fp32 it is what exactness requires. In bf16, for values, it is the
// probable effect of the roundings on the longest path to the outputs: 4 of a convolution and its
// norm, results and weights, of which there are 5; those of two sums; and at both ends the images,
// the average, and the last layer's result and weights.
//
// A gradient is not continuous: an error may turn the sign of what a ReLU reads, or make another
// element the largest of a window. An error of size e turns a share of 0.4 e of standard normal
// numbers, which is about what a norm produces, and half of them pass a gradient on: 0.8 e of its
// square is wrong. About e of the windows of 9 elements choose another one, which is wrong in two
// places. The j-th of 5 norms comes after e = sqrt(4 j + 1) u.
ReferenceTolerance FixtureTolerance(Precision precision) {
  if (precision == Precision::kFloat32) return {.values = 1e-5, .gradients = 1e-5};
  const double u = stagecoach::testing::PrecisionOf(kernels::DType::kBfloat16).unit_roundoff;
  double wrong = 2.0 * std::sqrt(5.0) * u;  // after the maximum, which follows the first norm
  for (int j = 1; j <= 5; ++j) wrong += 0.8 * std::sqrt(4.0 * j + 1.0) * u;
  return {.values = stagecoach::testing::ProbableErrorOfBfloat16(5 * 4 + 2 + 4),
          .gradients = std::sqrt(wrong)};
}

}  // namespace

Model ImageModel() {
  return {.input = Shape{1, 5, 4},
          .layers = {BatchNorm({.momentum = 0.25F}), Conv(6, 3, 1), Relu(), ResNetBlock(6, 6, 1),
                     GroupNorm(2), MaxPool({.kernel = 3, .stride = 1, .padding = 1}), ConcatSkip(),
                     ResNetBlock(12, 10, 2), GlobalAvgPool(), Linear(kSmallClasses)},
          .skips = {{3, 6}}};
}

Model ResidualBlocksModel() {
  return {.input = Shape{1, 5, 4},
          .layers = {Conv(4, 3, 1), BatchNorm(), Relu(), ResNetBlock(4, 4, 1), ResNetBlock(4, 4, 1),
                     BottleneckBlock(4, 8, 1), BottleneckBlock(8, 8, 1), BottleneckBlock(8, 6, 2),
                     ResNetBlock(6, 6, 1), ResNetBlock(6, 8, 2), ResNetBlock(8, 8, 1),
                     GlobalAvgPool(), Linear(kSmallClasses)}};
}

void ExpectImagesToMatchPyTorch(const DeviceSpec& device) {
  const ReferenceRun reference("resnet");
  const ReferenceRun::Entry& x = reference["x"];
  const ReferenceRun::Entry& labels = reference["labels"];
  constexpr int64_t kReferenceClasses = 5;
  const Shape image{x.shape.dim(1), x.shape.dim(2), x.shape.dim(3)};
  const auto data =
      TableDataset::Create(image, kReferenceClasses,
                           std::vector<float>(x.values.begin(), x.values.end()),
                           std::vector<int32_t>(labels.values.begin(), labels.values.end()))
          .value();
  const Model model = {
      .input = image,
      .layers = {Conv(8, 3, 1), BatchNorm(), Relu(),
                 MaxPool({.kernel = 3, .stride = 2, .padding = 1}), ResNetBlock(8, 8, 1),
                 ResNetBlock(8, 12, 2), GlobalAvgPool(), Linear(kReferenceClasses)}};
  ExpectToMatch(reference, model, EvenPlan(model, 2, "1f1b", /*micro_batches=*/2, data->rows() / 2),
                *data, {.learning_rate = LearningRate::Constant(1e-3F), .device = device},
                FixtureTolerance(device.precision));
}

}  // namespace stagecoach::engine
