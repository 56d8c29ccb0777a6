#include "tests/testing/cuda/cudnn/graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/bfloat16.h"
#include "tests/testing/cuda/cudnn/convolution.h"

namespace stagecoach::testing::cudnn {
namespace {

using api::DataType;
using api::DescriptorType;
using api::PointwiseMode;
using api::ReduceOperator;
using Dims = std::array<int64_t, 4>;
// The numbers of a tensor in the order of its dimensions.
using Values = std::vector<float>;

int64_t SizeOf(DataType type) {
  return type == DataType::kBfloat16 ? 2 : type == DataType::kBoolean ? 1 : 4;
}

int64_t Place(const Dims& at, const Dims& strides) {
  int64_t place = 0;
  for (size_t i = 0; i < at.size(); ++i) place += at[i] * strides[i];
  return place;
}

template <typename Visit>
void ForEach(const Dims& dims, Visit visit) {
  Dims at = {};
  for (at[0] = 0; at[0] < dims[0]; ++at[0]) {
    for (at[1] = 0; at[1] < dims[1]; ++at[1]) {
      for (at[2] = 0; at[2] < dims[2]; ++at[2]) {
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) visit(at);
      }
    }
  }
}

Dims Packed(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

Values Read(const Tensor& tensor, const void* data) {
  Values values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  ForEach(tensor.dims, [&](const Dims& at) {
    const int64_t place = Place(at, tensor.strides);
    values.push_back(tensor.type == DataType::kBfloat16
                         ? kernels::FromBfloat16(static_cast<const uint16_t*>(data)[place])
                         : static_cast<const float*>(data)[place]);
  });
  return values;
}

void Write(const Tensor& tensor, const Values& values, void* data) {
  auto next = values.begin();
  ForEach(tensor.dims, [&](const Dims& at) {
    const int64_t place = Place(at, tensor.strides);
    if (tensor.type == DataType::kBfloat16) {
      static_cast<uint16_t*>(data)[place] = kernels::ToBfloat16(*next);
    } else {
      static_cast<float*>(data)[place] = *next;
    }
    ++next;
  });
}

// An operand whose dimensions of extent one are broadcast.
class Broadcast {
 public:
  Broadcast(const Tensor& tensor, const Values& values)
      : strides_(Packed(tensor.dims)), values_(&values) {
    for (size_t i = 0; i < strides_.size(); ++i) {
      if (tensor.dims[i] == 1) strides_[i] = 0;
    }
  }
  float At(const Dims& at) const { return (*values_)[static_cast<size_t>(Place(at, strides_))]; }

 private:
  Dims strides_;
  const Values* values_;
};

float Apply(PointwiseMode mode, float x, float b, float t) {
  switch (mode) {
    case PointwiseMode::kAdd:
      return x + b;
    case PointwiseMode::kMul:
      return x * b;
    case PointwiseMode::kDiv:
      return x / b;
    case PointwiseMode::kSub:
      return x - b;
    case PointwiseMode::kExp:
      return std::exp(x);
    case PointwiseMode::kLog:
      return std::log(x);
    case PointwiseMode::kCmpGe:
      return x >= b ? 1.0F : 0.0F;
    case PointwiseMode::kBinarySelect:
      return t != 0.0F ? x : b;
    case PointwiseMode::kGenIndex:
      break;
  }
  STAGECOACH_CHECK(false, "the stand-in of cuDNN does not know the mode");
}

// One run.
class Run {
 public:
  Run(const Graph& graph, const std::map<int64_t, void*>& addresses,
      const std::map<int64_t, float>& scalars, Arithmetic arithmetic)
      : graph_(graph), addresses_(addresses), scalars_(scalars), arithmetic_(arithmetic) {}

  void Perform(const Operation& operation) {
    const Tensor& y = graph_.tensors.at(operation.y);
    Values values = Result(operation, y);
    if (y.type == DataType::kBfloat16) {
      for (float& value : values) value = kernels::FromBfloat16(kernels::ToBfloat16(value));
    }
    if (!y.is_virtual) Write(y, values, addresses_.at(operation.y));
    values_[operation.y] = std::move(values);
  }

 private:
  const Values& ValuesOf(int64_t id) {
    const auto known = values_.find(id);
    if (known != values_.end()) return known->second;
    const Tensor& tensor = graph_.tensors.at(id);
    return values_[id] =
               tensor.is_by_value ? Values{scalars_.at(id)} : Read(tensor, addresses_.at(id));
  }

  Values Result(const Operation& operation, const Tensor& y) {
    switch (operation.type) {
      case DescriptorType::kOperationMatmul:
        return Product(operation, y);
      case DescriptorType::kOperationReduction:
        return Reduced(operation, y);
      case DescriptorType::kOperationReshape:
        return Transposed(operation, y);
      case DescriptorType::kOperationConvolutionForward:
      case DescriptorType::kOperationConvolutionBackwardData:
      case DescriptorType::kOperationConvolutionBackwardFilter:
        return Convolve(operation, graph_.TensorsOf(operation), ValuesOf(operation.x),
                        ValuesOf(operation.b), arithmetic_.rounded);
      default:
        return Pointwise(operation, y);
    }
  }

  Values Product(const Operation& operation, const Tensor& y) {
    const Tensor& a = graph_.tensors.at(operation.x);
    const Tensor& b = graph_.tensors.at(operation.b);
    const Values &of_a = ValuesOf(operation.x), &of_b = ValuesOf(operation.b);
    const int64_t rows = y.dims[2], columns = y.dims[3], terms = a.dims[3];
    const int64_t group = a.dims[1] / b.dims[1];
    Values result(static_cast<size_t>(y.elements()), 0.0F);
    for (int64_t matrix = 0; matrix < y.dims[0] * y.dims[1]; ++matrix) {
      const float* const from_a = of_a.data() + matrix * rows * terms;
      const float* const from_b = of_b.data() + matrix / group * terms * columns;
      float* const to = result.data() + matrix * rows * columns;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < terms; ++i) {
          const int64_t k = arithmetic_.reversed ? terms - 1 - i : i;
          const float factor = from_a[row * terms + k];
          for (int64_t column = 0; column < columns; ++column) {
            to[row * columns + column] += factor * from_b[k * columns + column];
          }
        }
      }
    }
    return result;
  }

  Values Reduced(const Operation& operation, const Tensor& y) {
    const Tensor& x = graph_.tensors.at(operation.x);
    const bool adds = operation.reduce == ReduceOperator::kAdd;
    Values result(static_cast<size_t>(y.elements()), adds ? 0.0F : -INFINITY);
    auto next = ValuesOf(operation.x).begin();
    ForEach(x.dims, [&](Dims at) {
      for (size_t i = 0; i < at.size(); ++i) at[i] /= x.dims[i] / y.dims[i];
      float& value = result[static_cast<size_t>(Place(at, Packed(y.dims)))];
      value = adds ? value + *next : std::fmax(value, *next);
      ++next;
    });
    return result;
  }

  Values Transposed(const Operation& operation, const Tensor& y) {
    const Tensor& x = graph_.tensors.at(operation.x);
    const Values& of_x = ValuesOf(operation.x);
    Values result;
    ForEach(y.dims, [&](Dims at) {
      std::swap(at[2], at[3]);
      result.push_back(of_x[static_cast<size_t>(Place(at, Packed(x.dims)))]);
    });
    return result;
  }

  Values Pointwise(const Operation& operation, const Tensor& y) {
    static const Tensor none = {.dims = {1, 1, 1, 1}};
    static const Values zero = {0.0F};
    const auto operand = [&](int64_t id) {
      return id < 0 ? Broadcast(none, zero) : Broadcast(graph_.tensors.at(id), ValuesOf(id));
    };
    if (operation.mode == PointwiseMode::kGenIndex) {
      Values places;
      ForEach(y.dims, [&](const Dims& at) {
        places.push_back(static_cast<float>(at[static_cast<size_t>(operation.axis)]));
      });
      return places;
    }
    const Broadcast x = operand(operation.x), b = operand(operation.b), t = operand(operation.t);
    Values result;
    ForEach(y.dims, [&](const Dims& at) {
      result.push_back(Apply(operation.mode, x.At(at), b.At(at), t.At(at)));
    });
    return result;
  }

  const Graph& graph_;
  const std::map<int64_t, void*>& addresses_;
  const std::map<int64_t, float>& scalars_;
  const Arithmetic arithmetic_;
  std::map<int64_t, Values> values_;
};

bool Matches(const Tensor& part, const Tensor& whole) {
  for (size_t i = 0; i < part.dims.size(); ++i) {
    if (part.dims[i] != whole.dims[i] && part.dims[i] != 1) return false;
  }
  return true;
}

bool MayMultiply(const Tensor& a, const Tensor& b, const Tensor& c) {
  return a.dims[0] == c.dims[0] && b.dims[0] == c.dims[0] && a.dims[1] == c.dims[1] &&
         a.dims[1] % b.dims[1] == 0 && a.dims[2] == c.dims[2] && a.dims[3] == b.dims[2] &&
         b.dims[3] == c.dims[3];
}

bool IsTransposed(const Tensor& x, const Tensor& y) {
  const auto swapped = [](Dims of) {
    std::swap(of[2], of[3]);
    return of;
  };
  return y.dims == swapped(x.dims) && y.strides == swapped(x.strides);
}

bool MayReduce(const Tensor& x, const Tensor& y) {
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (x.dims[i] % y.dims[i] != 0) return false;
  }
  return true;
}

// Returns the letters by which the library recognizes its graphs.
std::string NameOf(const Operation& operation) {
  switch (operation.type) {
    case DescriptorType::kOperationMatmul:
      return "product";
    case DescriptorType::kOperationReduction:
      return operation.reduce == ReduceOperator::kAdd ? "sum" : "largest";
    case DescriptorType::kOperationReshape:
      return "reshape";
    case DescriptorType::kOperationConvolutionForward:
      return "convolution";
    case DescriptorType::kOperationConvolutionBackwardData:
      return "dx";
    case DescriptorType::kOperationConvolutionBackwardFilter:
      return "dw";
    default:
      break;
  }
  switch (operation.mode) {
    case PointwiseMode::kAdd:
      return "+";
    case PointwiseMode::kMul:
      return "*";
    case PointwiseMode::kDiv:
      return "/";
    case PointwiseMode::kSub:
      return "-";
    case PointwiseMode::kExp:
      return "exp";
    case PointwiseMode::kLog:
      return "log";
    case PointwiseMode::kCmpGe:
      return ">=";
    case PointwiseMode::kGenIndex:
      return absl::StrCat("index", operation.axis);
    case PointwiseMode::kBinarySelect:
      return "?";
  }
  return "unknown";
}

constexpr char kForward[] = "product * index2 index3 >= ? largest - exp sum log + / product ";
constexpr char kBackward[] =
    "* sum * product * - index2 index3 >= ? exp reshape product product - * * reshape product "
    "reshape product ";
constexpr char kGroupedBackward[] =
    "* sum * product * - index2 index3 >= ? exp reshape product sum product - * * reshape product "
    "sum reshape product ";

}  // namespace

int64_t Tensor::bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return (last + 1) * SizeOf(type);
}

bool Graph::is_backward() const {
  return std::any_of(operations.begin(), operations.end(), [](const Operation& operation) {
    return operation.type == DescriptorType::kOperationReshape;
  });
}

std::string Graph::Check() const {
  std::set<int64_t> written, read;
  std::string names;
  for (const Operation& operation : operations) {
    for (const int64_t id : {operation.x, operation.b, operation.t}) {
      if (id < 0) continue;
      if (tensors.at(id).is_virtual && !written.contains(id)) {
        return absl::StrCat("tensor ", id, " is read before it is written");
      }
      read.insert(id);
    }
    const Tensor &x = tensors.at(operation.x), &y = tensors.at(operation.y);
    if (y.is_by_value || read.contains(operation.y) || !written.insert(operation.y).second) {
      return absl::StrCat("tensor ", operation.y, " cannot be written");
    }
    bool fits = true;
    if (IsConvolution(operation.type)) {
      names += NameOf(operation) + " ";
      continue;  // checked already
    }
    if (operation.type == DescriptorType::kOperationMatmul) {
      fits = MayMultiply(x, tensors.at(operation.b), y);
    } else if (operation.type == DescriptorType::kOperationReduction) {
      fits = MayReduce(x, y);
    } else if (operation.type == DescriptorType::kOperationReshape) {
      fits = IsTransposed(x, y);
    } else {
      for (const int64_t id : {operation.x, operation.b, operation.t}) {
        fits = fits && (id < 0 || Matches(tensors.at(id), y));
      }
      const bool compares = operation.mode == PointwiseMode::kCmpGe;
      fits = fits && (operation.precision == DataType::kBoolean) == compares &&
             (y.type == DataType::kBoolean) == compares &&
             (y.type == DataType::kInt32) == (operation.mode == PointwiseMode::kGenIndex) &&
             (operation.axis >= 0) == (operation.mode == PointwiseMode::kGenIndex);
    }
    if (!fits) return absl::StrCat("operands of tensor ", operation.y, " do not fit");
    names += NameOf(operation) + " ";
  }
  for (const auto& [id, tensor] : tensors) {
    if (tensor.is_virtual && !read.contains(id)) return absl::StrCat("tensor ", id, " is not read");
  }
  const std::set<std::string> known = {kForward,       kBackward,        kGroupedBackward,
                                       "convolution ", "convolution + ", "dx ",
                                       "dw ",          "dw * "};
  return known.contains(names) ? "" : absl::StrCat("no engine for ", names);
}

int64_t Graph::WorkspaceBytes() const {
  if (!is_backward()) return 256;
  Dims scores = {}, heads = {};
  bool is_grouped = false;
  for (const Operation& operation : operations) {
    if (operation.type == DescriptorType::kOperationReshape && scores[0] == 0) {
      scores = tensors.at(operation.x).dims;
    }
    const bool sums = operation.type == DescriptorType::kOperationReduction;
    if (sums && tensors.at(operation.x).type == DataType::kBfloat16) {
      is_grouped = true;
      heads = tensors.at(operation.x).dims;
    }
  }
  const auto rounded = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  const int64_t of_scores =
      2 * scores[0] * scores[1] * rounded(scores[2], 64) * rounded(scores[3], 128);
  return of_scores + (is_grouped ? 2 * 2 * heads[0] * heads[1] * heads[2] * heads[3] : 0) + 256;
}

void Graph::Compute(const std::map<int64_t, void*>& addresses,
                    const std::map<int64_t, float>& scalars, Arithmetic arithmetic) const {
  Run run(*this, addresses, scalars, arithmetic);
  for (const Operation& operation : operations) run.Perform(operation);
}

}  // namespace stagecoach::testing::cudnn
