#ifndef STAGECOACH_KERNELS_CUDA_CUDNN_CONVOLUTION_GRAPH_H_
#define STAGECOACH_KERNELS_CUDA_CUDNN_CONVOLUTION_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/graph.h"
#include "kernels/device.h"

// The passes of a convolution as graphs (kernels/ops/convolution.h has the formulas and the
// letters). All tensors have their channels last, weights too: (O, K, K, I/G) in memory. Products
// are summed in float32.
//
// What cuDNN 9.19 offers for the convolutions of ResNets on an H100, asked without one:
// - forward with or without a bias, and backward to the input: precompiled kernels on tensor cores,
//   tens of them that repeat their bits, which need next to no scratch if the channels are
//   multiples of 16 bytes;
// - backward to the weights from bfloat16 to float32: none for the convolution by itself. If its
//   result is then multiplied by a number, kernels that are compiled at run time, some of which
//   divide the sum into 16 parts (2 to 4 MiB of scratch). If it is copied instead, one kernel only.
//   None of them with groups, nor with channels that are not multiples of 4 bytes;
// - float32 without tensor cores: a few, which are the last that it proposes, or are of its mode
//   "fallback" alone.
namespace stagecoach::kernels::cudnn {

enum class ConvolutionPass : uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct ConvolutionExtents {
  int64_t samples = 1;                          // N
  int64_t inputs = 1, height = 1, width = 1;    // I, H, W
  int64_t outputs = 1;                          // O
  int64_t output_height = 1, output_width = 1;  // P, Q
  int64_t kernel = 1, stride = 1, padding = 0;  // K
  int64_t groups = 1;                           // G
  DataType type = DataType::kFloat;             // of all but the gradient of the weights: float32
  bool has_bias = false;                        // forward only

  std::vector<int64_t> AsKey() const {
    return {samples,      inputs, height, width,   outputs, output_height,
            output_width, kernel, stride, padding, groups,  static_cast<int64_t>(type),
            has_bias};
  }
  int64_t image_elements() const { return samples * inputs * height * width; }
  int64_t weight_elements() const { return outputs * (inputs / groups) * kernel * kernel; }
  int64_t output_elements() const { return samples * outputs * output_height * output_width; }
};

// The operands. Which of them a pass writes is in its name: y, dx or dw.
enum ConvolutionOperand : int64_t {
  kImages = 1,          // x or dx
  kConvolutionWeights,  // w or dw
  kConvolutionOutputs,  // y or dy
  kConvolutionBias,     // (O), of `type`; forward with a bias only
  kUnit,                // scalar: 1; backward to the weights from bfloat16 only
};

// Whether the pass takes the operand kUnit.
inline bool TakesUnit(ConvolutionPass pass, const ConvolutionExtents& extents) {
  return pass == ConvolutionPass::kBackwardWeight && extents.type != DataType::kFloat;
}

absl::StatusOr<Graph> ConvolutionGraph(const GpuHandle& handle, ConvolutionPass pass,
                                       const ConvolutionExtents& extents);

// The most scratch that an engine gets, for any pass: a function of the shape alone, so that plans
// of memory depend neither on the choice of engines nor on whether there is a cuDNN. In proportion
// to what a pass reads and writes, and to sums of weights in 16 parts; at most 32 MiB, as of
// products. On an H100, what cuDNN 9.19 proposes first for the convolutions of ResNet-50 takes 5
// MiB at most, but for the gradient of the first layer's input.
int64_t ConvolutionScratchBytes(const ConvolutionExtents& extents);

// The engines that may be used, the best first. What is not wanted: bits that vary, sums in less
// than float32, products by transforms, whose errors are larger; and with kFloat32 also products of
// operands that are rounded first.
absl::StatusOr<std::vector<Engine>> ConvolutionEngines(const GpuHandle& handle, const Graph& graph,
                                                       Precision precision);

}  // namespace stagecoach::kernels::cudnn

#endif  // STAGECOACH_KERNELS_CUDA_CUDNN_CONVOLUTION_GRAPH_H_
