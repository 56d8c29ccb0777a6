#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUDNN_CONVOLUTION_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUDNN_CONVOLUTION_H_

#include <memory>
#include <vector>

#include "kernels/cuda/cudnn/api.h"
#include "tests/testing/cuda/cudnn/graph.h"
#include "tests/testing/cuda/cudnn/objects.h"

// Convolutions in the stand-in of cuDNN.
namespace stagecoach::testing::cudnn {

// Returns the result of a convolution, from `x` and `b` in the order of their dimensions: summed in
// double, and rounded. With `rounded`, float32 operands are rounded to TF32 first.
std::vector<float> Convolve(const Operation& operation, const ConvolutionTensors& tensors,
                            const std::vector<float>& x, const std::vector<float>& b, bool rounded);

// Returns the engines that are proposed: like cuDNN 9.19 for an H100, a few of each kind. There are
// none where cuDNN has none, and only for tensors whose channels are last and whose alignment is
// 16.
std::vector<Engine> ConvolutionEngines(const std::shared_ptr<const Graph>& graph,
                                       api::HeuristicMode mode);

}  // namespace stagecoach::testing::cudnn

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUDNN_CONVOLUTION_H_
