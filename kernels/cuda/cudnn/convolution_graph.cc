#include "kernels/cuda/cudnn/convolution_graph.h"

#include <algorithm>
#include <array>

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels::cudnn {
namespace {

Dimensions ChannelsLast(const Dimensions& of) {
  return {of[1] * of[2] * of[3], 1, of[3] * of[1], of[1]};
}

}  // namespace

absl::StatusOr<Graph> ConvolutionGraph(const GpuHandle& handle, ConvolutionPass pass,
                                       const ConvolutionExtents& e) {
  GraphBuilder g(handle.api());
  const auto operand = [&](int64_t id, DataType type, const Dimensions& dimensions) {
    return g.Operand(id, type, dimensions, ChannelsLast(dimensions));
  };
  const auto in_between = [&](const Dimensions& dimensions) {
    return g.Virtual(DataType::kFloat, dimensions, ChannelsLast(dimensions));
  };
  const Dimensions of_x = {e.samples, e.inputs, e.height, e.width};
  const Dimensions of_w = {e.outputs, e.inputs / e.groups, e.kernel, e.kernel};
  const Dimensions of_y = {e.samples, e.outputs, e.output_height, e.output_width};
  const Window window = {.stride = e.stride, .padding = e.padding};
  const Descriptor x = operand(kImages, e.type, of_x);
  const Descriptor y = operand(kConvolutionOutputs, e.type, of_y);
  if (pass == ConvolutionPass::kBackwardWeight) {
    const Descriptor dw = operand(kConvolutionWeights, DataType::kFloat, of_w);
    const Descriptor sums = TakesUnit(pass, e) ? in_between(of_w) : dw;
    g.Convolution(DescriptorType::kOperationConvolutionBackwardFilter, window, x, sums, y);
    if (sums != dw) g.Pointwise(PointwiseMode::kMul, sums, g.Scalar(kUnit), dw);
    return g.Finish(handle);
  }
  const Descriptor w = operand(kConvolutionWeights, e.type, of_w);
  if (pass == ConvolutionPass::kBackwardInput) {
    g.Convolution(DescriptorType::kOperationConvolutionBackwardData, window, x, w, y);
    return g.Finish(handle);
  }
  const Descriptor sums = e.has_bias ? in_between(of_y) : y;
  g.Convolution(DescriptorType::kOperationConvolutionForward, window, x, w, sums);
  if (e.has_bias) {
    const Descriptor bias = operand(kConvolutionBias, e.type, {1, e.outputs, 1, 1});
    g.Pointwise(PointwiseMode::kAdd, sums, bias, y);
  }
  return g.Finish(handle);
}

int64_t ConvolutionScratchBytes(const ConvolutionExtents& extents) {
  constexpr int64_t kLeast = int64_t{64} << 10, kMost = int64_t{32} << 20;
  constexpr int64_t kWeightParts = 16, kBytes = SizeOf(DType::kFloat32);
  const int64_t images = extents.image_elements() + extents.output_elements();
  return std::min(kMost, kLeast + kBytes * (images + kWeightParts * extents.weight_elements()));
}

absl::StatusOr<std::vector<Engine>> ConvolutionEngines(const GpuHandle& handle, const Graph& graph,
                                                       Precision precision) {
  constexpr std::array kUnwanted = {NumericalNote::kNondeterministic,
                                    NumericalNote::kReducedPrecisionReduction, NumericalNote::kFft,
                                    NumericalNote::kWinograd, NumericalNote::kDownConvertInputs,
                                    // This note is excluded with kFloat32 only.
                                    NumericalNote::kTensorCore};
  const size_t count = kUnwanted.size() - (precision == Precision::kFloat32 ? 0 : 1);
  return EnginesWithout(absl::MakeConstSpan(kUnwanted).subspan(0, count),
                        {HeuristicMode::kA, HeuristicMode::kFallback}, handle, graph);
}

}  // namespace stagecoach::kernels::cudnn
