#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUDNN_GRAPH_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUDNN_GRAPH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn/api.h"

// Computes a graph of cuDNN's in plain C++. The stand-in of cuDNN has a namespace of its own.
namespace stagecoach::testing::cudnn {

namespace api = kernels::cudnn;

struct Tensor {
  int64_t id = 0;
  api::DataType type = api::DataType::kFloat;
  std::array<int64_t, 4> dims = {}, strides = {};
  int64_t alignment = 1;
  bool is_virtual = false, is_by_value = false;

  bool operator==(const Tensor&) const = default;
  bool in_memory() const { return !is_virtual && !is_by_value; }
  int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  // Returns the size from the first element to the end of the last.
  int64_t bytes() const;
};

// The window of a convolution, along both axes.
struct Window {
  std::array<int64_t, 2> dilations = {}, strides = {}, before = {}, after = {};
  api::ConvolutionMode mode = api::ConvolutionMode::kCrossCorrelation;
  api::DataType compute_type = api::DataType::kFloat;
};

inline bool IsConvolution(api::DescriptorType type) {
  return type == api::DescriptorType::kOperationConvolutionForward ||
         type == api::DescriptorType::kOperationConvolutionBackwardData ||
         type == api::DescriptorType::kOperationConvolutionBackwardFilter;
}

// Computes y from x and, if they exist, b and t, by their ids; -1: absent. A matrix product has a
// and b as x and b; a convolution x and w, dy and w, or x and dy.
struct Operation {
  api::DescriptorType type = api::DescriptorType::kOperationPointwise;
  api::PointwiseMode mode = api::PointwiseMode::kAdd;
  api::DataType precision = api::DataType::kFloat;
  int64_t axis = -1;
  api::ReduceOperator reduce = api::ReduceOperator::kAdd;
  int64_t x = -1, b = -1, t = -1, y = -1;
  Window window = {};
};

// The tensors of a convolution, whichever of them it writes.
struct ConvolutionTensors {
  const Tensor &images, &weights, &outputs;
  int64_t groups() const { return images.dims[1] / weights.dims[1]; }
};

struct Arithmetic {
  bool reversed = false;  // products of matrices are summed in reverse order
  bool rounded = false;   // operands of convolutions are rounded to TF32
};

struct Graph {
  int gpu = 0;
  std::map<int64_t, Tensor> tensors;
  std::vector<Operation> operations;

  // Returns why it is not a graph, or not one that has engines; "" if it is one.
  std::string Check() const;
  // Returns whether it is the backward graph of attention.
  bool is_backward() const;
  bool is_convolution() const { return IsConvolution(operations.front().type); }
  ConvolutionTensors TensorsOf(const Operation& convolution) const;
  // Returns why the tensors of a convolution do not fit one another, or "".
  std::string CheckConvolution(const Operation& operation) const;
  // Returns the workspace of backward kernels: as much as cuDNN 9.19 was seen to ask for.
  int64_t WorkspaceBytes() const;
  // Computes the whole graph. `addresses` are those of tensors in memory, `scalars` the operands
  // passed by value.
  void Compute(const std::map<int64_t, void*>& addresses, const std::map<int64_t, float>& scalars,
               Arithmetic arithmetic) const;
};

}  // namespace stagecoach::testing::cudnn

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUDNN_GRAPH_H_
