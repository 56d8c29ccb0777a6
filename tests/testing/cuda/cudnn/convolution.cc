#include "tests/testing/cuda/cudnn/convolution.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace stagecoach::testing::cudnn {
namespace {

using api::DataType;
using api::DescriptorType;
using api::HeuristicMode;
using api::NumericalNote;
using Dims = std::array<int64_t, 4>;

// Returns the nearest number of eleven bits, ties away from zero.
float ToTf32(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x1000) & ~uint32_t{0x1FFF};
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

std::vector<double> Operand(const std::vector<float>& values, bool rounded) {
  std::vector<double> operand;
  operand.reserve(values.size());
  for (const float value : values) {
    operand.push_back(static_cast<double>(rounded ? ToTf32(value) : value));
  }
  return operand;
}

// Calls `visit(image, weight, output)` with the places, in the order of dimensions, of the three
// numbers of each product.
template <typename Visit>
void ForEachProduct(const ConvolutionTensors& tensors, const Window& window, Visit visit) {
  const Dims &x = tensors.images.dims, &w = tensors.weights.dims, &y = tensors.outputs.dims;
  const int64_t group_outputs = w[0] / tensors.groups();
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      const int64_t first_input = o / group_outputs * w[1];
      for (int64_t p = 0; p < y[2]; ++p) {
        for (int64_t q = 0; q < y[3]; ++q) {
          const int64_t output = ((n * y[1] + o) * y[2] + p) * y[3] + q;
          for (int64_t k = 0; k < w[2]; ++k) {
            const int64_t row = p * window.strides[0] + k * window.dilations[0] - window.before[0];
            if (row < 0 || row >= x[2]) continue;
            for (int64_t l = 0; l < w[3]; ++l) {
              const int64_t column =
                  q * window.strides[1] + l * window.dilations[1] - window.before[1];
              if (column < 0 || column >= x[3]) continue;
              for (int64_t i = 0; i < w[1]; ++i) {
                visit(((n * x[1] + first_input + i) * x[2] + row) * x[3] + column,
                      ((o * w[1] + i) * w[2] + k) * w[3] + l, output);
              }
            }
          }
        }
      }
    }
  }
}

bool HasChannelsLast(const Tensor& tensor) {
  const Dims& dims = tensor.dims;
  return tensor.strides == Dims{dims[1] * dims[2] * dims[3], 1, dims[3] * dims[1], dims[1]};
}

// The properties on which engines depend.
struct Kind {
  DescriptorType operation;
  bool has_bfloat16;
  bool to_float;      // gradients of weights of bfloat16, in float32
  bool has_epilogue;  // an operation follows the convolution
  int64_t weight_elements;
};

std::vector<Engine> Proposed(const Kind& kind, const std::shared_ptr<const Graph>& graph) {
  constexpr auto kTensorCore = NumericalNote::kTensorCore;
  switch (kind.operation) {
    case DescriptorType::kOperationConvolutionForward:
      return {{62, 7, graph, 131, {kTensorCore}},
              {62, 8, graph, 131, {kTensorCore}},
              {45, 0, graph, 0, {kTensorCore}},
              {27, 0, graph, 64, {kTensorCore, NumericalNote::kWinograd}},
              {28, 0, graph, 0, {}}};
    case DescriptorType::kOperationConvolutionBackwardData:
      return {{25, 0, graph, 0, {NumericalNote::kNondeterministic}},
              {67, 1, graph, 131, {kTensorCore}},
              {74, 0, graph, 0, {}}};
    default:
      break;
  }
  if (kind.to_float && kind.has_epilogue) {
    // The knob is the number of parts into which the sum is divided.
    return {{1, 16, graph, kind.weight_elements * 16 * 4, {kTensorCore}},
            {1, 0, graph, 0, {kTensorCore}},
            {2, 0, graph, 0, {kTensorCore}}};
  }
  if (kind.to_float || kind.has_epilogue) return {};
  return {{20, 0, graph, 0, {NumericalNote::kNondeterministic}},
          {68, 0, graph, 0, {kTensorCore}},
          {68, 3, graph, 131, {kTensorCore}}};
}

std::vector<Engine> Fallbacks(const Kind& kind, const std::shared_ptr<const Graph>& graph) {
  if (kind.to_float) {
    if (!kind.has_epilogue) return {};
    return {{2, 0, graph, 0, {NumericalNote::kTensorCore}}};
  }
  return {{0, 0, graph, 0, {NumericalNote::kTensorCore, NumericalNote::kDownConvertInputs}},
          {28, 0, graph, 0, {}}};
}

}  // namespace

std::vector<float> Convolve(const Operation& operation, const ConvolutionTensors& tensors,
                            const std::vector<float>& x, const std::vector<float>& b,
                            bool rounded) {
  const bool rounds = rounded && tensors.images.type == DataType::kFloat;
  const std::vector<double> of_x = Operand(x, rounds), of_b = Operand(b, rounds);
  const Tensor* written = &tensors.outputs;
  if (operation.type == DescriptorType::kOperationConvolutionBackwardData) {
    written = &tensors.images;
  } else if (operation.type == DescriptorType::kOperationConvolutionBackwardFilter) {
    written = &tensors.weights;
  }
  std::vector<double> sums(static_cast<size_t>(written->elements()), 0.0);
  const auto add = [&](int64_t to, int64_t from_x, int64_t from_b) {
    sums[static_cast<size_t>(to)] +=
        of_x[static_cast<size_t>(from_x)] * of_b[static_cast<size_t>(from_b)];
  };
  ForEachProduct(tensors, operation.window, [&](int64_t image, int64_t weight, int64_t output) {
    if (written == &tensors.outputs) {
      add(output, image, weight);
    } else if (written == &tensors.images) {
      add(image, output, weight);
    } else {
      add(weight, image, output);
    }
  });
  return {sums.begin(), sums.end()};
}

std::vector<Engine> ConvolutionEngines(const std::shared_ptr<const Graph>& graph,
                                       HeuristicMode mode) {
  const Operation& convolution = graph->operations.front();
  const ConvolutionTensors tensors = graph->TensorsOf(convolution);
  for (const Tensor* const tensor : {&tensors.images, &tensors.weights, &tensors.outputs}) {
    if (!HasChannelsLast(*tensor) || tensor->alignment < 16) return {};
  }
  if (convolution.window.mode != api::ConvolutionMode::kCrossCorrelation ||
      convolution.window.compute_type != DataType::kFloat) {
    return {};
  }
  const bool has_bfloat16 = tensors.images.type == DataType::kBfloat16;
  const Kind kind = {.operation = convolution.type,
                     .has_bfloat16 = has_bfloat16,
                     .to_float = has_bfloat16 && tensors.weights.type == DataType::kFloat,
                     .has_epilogue = graph->operations.size() > 1,
                     .weight_elements = tensors.weights.elements()};
  // These are compiled at run time: without groups, and for channels of whole words.
  const bool are_words = tensors.images.dims[1] % 2 == 0 && tensors.outputs.dims[1] % 2 == 0;
  if (kind.to_float && (tensors.groups() > 1 || !are_words)) return {};
  return mode == HeuristicMode::kA ? Proposed(kind, graph) : Fallbacks(kind, graph);
}

ConvolutionTensors Graph::TensorsOf(const Operation& convolution) const {
  const Tensor &x = tensors.at(convolution.x), &b = tensors.at(convolution.b);
  const Tensor& y = tensors.at(convolution.y);
  switch (convolution.type) {
    case DescriptorType::kOperationConvolutionBackwardData:
      return {y, b, x};
    case DescriptorType::kOperationConvolutionBackwardFilter:
      return {x, y, b};
    default:
      return {x, b, y};
  }
}

std::string Graph::CheckConvolution(const Operation& operation) const {
  const ConvolutionTensors of = TensorsOf(operation);
  const Dims &x = of.images.dims, &w = of.weights.dims, &y = of.outputs.dims;
  if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] != 0 || w[0] % of.groups() != 0) {
    return "the channels or samples of a convolution do not fit";
  }
  const Window& window = operation.window;
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t kernel = (w[2 + axis] - 1) * window.dilations[axis] + 1;
    const int64_t room = x[2 + axis] + window.before[axis] + window.after[axis] - kernel;
    if (room < 0 || y[2 + axis] != room / window.strides[axis] + 1) {
      return "the images of a convolution do not fit";
    }
  }
  const auto has_type = [&](const Tensor& tensor) {
    return tensor.type == DataType::kFloat || tensor.type == of.images.type;
  };
  return has_type(of.weights) && has_type(of.outputs) ? "" : "a type does not fit";
}

}  // namespace stagecoach::testing::cudnn
