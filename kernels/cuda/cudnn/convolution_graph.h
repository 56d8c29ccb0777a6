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
// The engines of cuDNN 9.19 for the convolutions of ResNets on an H100, found without one:
// - forward with or without a bias, and backward to the input: precompiled kernels on tensor cores,
//   tens of them with reproducible bits, which need next to no scratch if the channels are
//   multiples of 16 bytes;
// - backward to the weights from bfloat16 to float32: none for the convolution by itself. If its
//   result is then multiplied by a number, kernels that are compiled at run time, some of which
//   divide the sum into 16 parts (2 to 4 MiB of scratch). If it is copied instead, one kernel only.
//   None of them supports groups, or channels that are not multiples of 4 bytes;
// - float32 without tensor cores: a few, which come last in its proposals, or only in its mode
//   "fallback".
namespace stagecoach::kernels::cudnn {

enum class ConvolutionPass : uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct ConvolutionExtents {
  int64_t samples = 1;                          // N
  int64_t inputs = 1, height = 1, width = 1;    // I, H, W
  int64_t outputs = 1;                          // O
  int64_t output_height = 1, output_width = 1;  // P, Q
  int64_t kernel = 1, stride = 1, padding = 0;  // K
  int64_t groups = 1;                           // G
  DataType type = DataType::kFloat;             // of everything but the gradient of the weights,
                                                // which is float32
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

// The operands. A pass is named for the one that it writes: y, dx or dw.
enum ConvolutionOperand : int64_t {
  kImages = 1,          // x or dx
  kConvolutionWeights,  // w or dw
  kConvolutionOutputs,  // y or dy
  kConvolutionBias,     // (O), of `type`; only for forward with a bias
  kUnit,                // scalar: 1; only for backward to the weights from bfloat16
};

// Returns whether the pass takes the operand kUnit.
inline bool TakesUnit(ConvolutionPass pass, const ConvolutionExtents& extents) {
  return pass == ConvolutionPass::kBackwardWeight && extents.type != DataType::kFloat;
}

absl::StatusOr<Graph> ConvolutionGraph(const GpuHandle& handle, ConvolutionPass pass,
                                       const ConvolutionExtents& extents);

// Returns the most scratch that an engine gets, for any pass: a function of the shape alone, so
// that plans of memory depend neither on the choice of engines nor on whether cuDNN is available.
// It is proportional to what a pass reads and writes, and to sums of weights in 16 parts; at most
// 32 MiB, as for products. On an H100, cuDNN 9.19's first proposals for the convolutions of
// ResNet-50 take at most 5 MiB, except for the gradient of the first layer's input.
int64_t ConvolutionScratchBytes(const ConvolutionExtents& extents);

// Returns the engines that may be used, the best first. It excludes engines with varying bits, sums
// in less than float32, or products by transforms, whose errors are larger; and with kFloat32 also
// those that round the operands of products first.
absl::StatusOr<std::vector<Engine>> ConvolutionEngines(const GpuHandle& handle, const Graph& graph,
                                                       Precision precision);

}  // namespace stagecoach::kernels::cudnn

#endif  // STAGECOACH_KERNELS_CUDA_CUDNN_CONVOLUTION_GRAPH_H_
