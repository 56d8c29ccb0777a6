#include "tests/testing/cuda/cudnn/objects.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "tests/testing/cuda/cudnn/faults.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cudnn {
namespace {

using api::Attribute;
using api::AttributeType;
using api::DescriptorType;
using api::Status;

// An attribute that can be set on a descriptor. `refers_to` only matters for
// AttributeType::kDescriptor.
struct Rule {
  DescriptorType of;
  Attribute name;
  AttributeType type;
  int64_t least, most;
  bool is_required = true;
  DescriptorType refers_to = DescriptorType::kTensor;
};
constexpr int64_t kMany = 1000;
constexpr auto kRefers = AttributeType::kDescriptor;
constexpr Rule kRules[] = {
    {DescriptorType::kTensor, Attribute::kTensorDataType, AttributeType::kDataType, 1, 1},
    {DescriptorType::kTensor, Attribute::kTensorDimensions, AttributeType::kInt64, 4, 4},
    {DescriptorType::kTensor, Attribute::kTensorStrides, AttributeType::kInt64, 4, 4},
    {DescriptorType::kTensor, Attribute::kTensorUniqueId, AttributeType::kInt64, 1, 1},
    {DescriptorType::kTensor, Attribute::kTensorByteAlignment, AttributeType::kInt64, 1, 1},
    {DescriptorType::kTensor, Attribute::kTensorIsVirtual, AttributeType::kBoolean, 1, 1, false},
    {DescriptorType::kTensor, Attribute::kTensorIsByValue, AttributeType::kBoolean, 1, 1, false},
    {DescriptorType::kMatmul, Attribute::kMatmulCompType, AttributeType::kDataType, 1, 1},
    {DescriptorType::kOperationMatmul, Attribute::kOperationMatmulA, kRefers, 1, 1},
    {DescriptorType::kOperationMatmul, Attribute::kOperationMatmulB, kRefers, 1, 1},
    {DescriptorType::kOperationMatmul, Attribute::kOperationMatmulC, kRefers, 1, 1},
    {DescriptorType::kOperationMatmul, Attribute::kOperationMatmulDescriptor, kRefers, 1, 1, true,
     DescriptorType::kMatmul},
    {DescriptorType::kPointwise, Attribute::kPointwiseMode, AttributeType::kPointwiseMode, 1, 1},
    {DescriptorType::kPointwise, Attribute::kPointwiseMathPrecision, AttributeType::kDataType, 1,
     1},
    {DescriptorType::kPointwise, Attribute::kPointwiseAxis, AttributeType::kInt64, 1, 1, false},
    {DescriptorType::kOperationPointwise, Attribute::kOperationPointwiseDescriptor, kRefers, 1, 1,
     true, DescriptorType::kPointwise},
    {DescriptorType::kOperationPointwise, Attribute::kOperationPointwiseX, kRefers, 1, 1},
    {DescriptorType::kOperationPointwise, Attribute::kOperationPointwiseB, kRefers, 1, 1, false},
    {DescriptorType::kOperationPointwise, Attribute::kOperationPointwiseT, kRefers, 1, 1, false},
    {DescriptorType::kOperationPointwise, Attribute::kOperationPointwiseY, kRefers, 1, 1},
    {DescriptorType::kConvolution, Attribute::kConvolutionCompType, AttributeType::kDataType, 1, 1},
    {DescriptorType::kConvolution, Attribute::kConvolutionMode, AttributeType::kConvolutionMode, 1,
     1},
    {DescriptorType::kConvolution, Attribute::kConvolutionSpatialDimensions, AttributeType::kInt64,
     1, 1},
    {DescriptorType::kConvolution, Attribute::kConvolutionDilations, AttributeType::kInt64, 2, 2},
    {DescriptorType::kConvolution, Attribute::kConvolutionStrides, AttributeType::kInt64, 2, 2},
    {DescriptorType::kConvolution, Attribute::kConvolutionPrePaddings, AttributeType::kInt64, 2, 2},
    {DescriptorType::kConvolution, Attribute::kConvolutionPostPaddings, AttributeType::kInt64, 2,
     2},
    {DescriptorType::kOperationConvolutionForward,
     Attribute::kOperationConvolutionForwardDescriptor, kRefers, 1, 1, true,
     DescriptorType::kConvolution},
    {DescriptorType::kOperationConvolutionForward, Attribute::kOperationConvolutionForwardX,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionForward, Attribute::kOperationConvolutionForwardW,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionForward, Attribute::kOperationConvolutionForwardY,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionForward, Attribute::kOperationConvolutionForwardAlpha,
     AttributeType::kFloat, 1, 1},
    {DescriptorType::kOperationConvolutionForward, Attribute::kOperationConvolutionForwardBeta,
     AttributeType::kFloat, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardData,
     Attribute::kOperationConvolutionDataDescriptor, kRefers, 1, 1, true,
     DescriptorType::kConvolution},
    {DescriptorType::kOperationConvolutionBackwardData, Attribute::kOperationConvolutionDataDx,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardData, Attribute::kOperationConvolutionDataW,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardData, Attribute::kOperationConvolutionDataDy,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardData, Attribute::kOperationConvolutionDataAlpha,
     AttributeType::kFloat, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardData, Attribute::kOperationConvolutionDataBeta,
     AttributeType::kFloat, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardFilter,
     Attribute::kOperationConvolutionFilterDescriptor, kRefers, 1, 1, true,
     DescriptorType::kConvolution},
    {DescriptorType::kOperationConvolutionBackwardFilter, Attribute::kOperationConvolutionFilterX,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardFilter, Attribute::kOperationConvolutionFilterDw,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardFilter, Attribute::kOperationConvolutionFilterDy,
     kRefers, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardFilter,
     Attribute::kOperationConvolutionFilterAlpha, AttributeType::kFloat, 1, 1},
    {DescriptorType::kOperationConvolutionBackwardFilter,
     Attribute::kOperationConvolutionFilterBeta, AttributeType::kFloat, 1, 1},
    {DescriptorType::kReduction, Attribute::kReductionOperator, AttributeType::kReduceOperator, 1,
     1},
    {DescriptorType::kReduction, Attribute::kReductionCompType, AttributeType::kDataType, 1, 1},
    {DescriptorType::kOperationReduction, Attribute::kOperationReductionDescriptor, kRefers, 1, 1,
     true, DescriptorType::kReduction},
    {DescriptorType::kOperationReduction, Attribute::kOperationReductionX, kRefers, 1, 1},
    {DescriptorType::kOperationReduction, Attribute::kOperationReductionY, kRefers, 1, 1},
    {DescriptorType::kOperationReshape, Attribute::kOperationReshapeX, kRefers, 1, 1},
    {DescriptorType::kOperationReshape, Attribute::kOperationReshapeY, kRefers, 1, 1},
    {DescriptorType::kOperationGraph, Attribute::kOperationGraphHandle, AttributeType::kHandle, 1,
     1},
    {DescriptorType::kOperationGraph, Attribute::kOperationGraphOps, kRefers, 1, kMany},
    {DescriptorType::kEngineHeuristic, Attribute::kEngineHeuristicOperationGraph, kRefers, 1, 1,
     true, DescriptorType::kOperationGraph},
    {DescriptorType::kEngineHeuristic, Attribute::kEngineHeuristicMode,
     AttributeType::kHeuristicMode, 1, 1},
    {DescriptorType::kExecutionPlan, Attribute::kExecutionPlanHandle, AttributeType::kHandle, 1, 1},
    {DescriptorType::kExecutionPlan, Attribute::kExecutionPlanEngineConfig, kRefers, 1, 1, true,
     DescriptorType::kEngineConfig},
    {DescriptorType::kVariantPack, Attribute::kVariantPackUniqueIds, AttributeType::kInt64, 1,
     kMany},
    {DescriptorType::kVariantPack, Attribute::kVariantPackDataPointers, AttributeType::kVoidPointer,
     1, kMany},
    {DescriptorType::kVariantPack, Attribute::kVariantPackWorkspace, AttributeType::kVoidPointer, 1,
     1},
};

bool IsOperation(DescriptorType type) {
  return type == DescriptorType::kOperationMatmul || type == DescriptorType::kOperationPointwise ||
         type == DescriptorType::kOperationReduction || type == DescriptorType::kOperationReshape ||
         IsConvolution(type);
}

// The existing objects.
struct Objects {
  std::mutex mutex;
  std::map<api::Descriptor, std::unique_ptr<DescriptorObject>> descriptors;
  std::map<api::Handle, std::unique_ptr<api::Context>> handles;
};
Objects& TheObjects() {
  static auto* const objects = new Objects;
  return *objects;
}

Tensor TensorOf(const DescriptorObject& of) {
  Tensor tensor = {.id = of.One<int64_t>(Attribute::kTensorUniqueId),
                   .type = of.One<api::DataType>(Attribute::kTensorDataType),
                   .alignment = of.One<int64_t>(Attribute::kTensorByteAlignment),
                   .is_virtual = of.One<bool>(Attribute::kTensorIsVirtual),
                   .is_by_value = of.One<bool>(Attribute::kTensorIsByValue)};
  std::ranges::copy(of.All<int64_t>(Attribute::kTensorDimensions), tensor.dims.begin());
  std::ranges::copy(of.All<int64_t>(Attribute::kTensorStrides), tensor.strides.begin());
  return tensor;
}

const char* CheckTensor(const Tensor& tensor) {
  const auto is_positive = [](int64_t value) { return value >= 1; };
  if (!std::ranges::all_of(tensor.dims, is_positive)) return "a dimension is below 1";
  if (!std::ranges::all_of(tensor.strides, is_positive)) return "a stride is below 1";
  if (tensor.alignment < 1 || (tensor.alignment & (tensor.alignment - 1)) != 0) {
    return "the alignment is no power of two";
  }
  if (tensor.is_by_value && (tensor.is_virtual || tensor.elements() != 1)) {
    return "what is by value is one number that is not virtual";
  }
  return nullptr;
}

const char* CheckConvolution(const DescriptorObject& of) {
  for (const Attribute name : {Attribute::kConvolutionDilations, Attribute::kConvolutionStrides}) {
    for (const int64_t step : of.All<int64_t>(name)) {
      if (step < 1) return "a stride or dilation is below 1";
    }
  }
  for (const Attribute name :
       {Attribute::kConvolutionPrePaddings, Attribute::kConvolutionPostPaddings}) {
    for (const int64_t padding : of.All<int64_t>(name)) {
      if (padding < 0) return "a padding is below 0";
    }
  }
  return of.One<int64_t>(Attribute::kConvolutionSpatialDimensions) == 2
             ? nullptr
             : "the spatial dimensions are not those of the other attributes";
}

// The attribute names of one of the three convolution operations.
struct ConvolutionNames {
  Attribute descriptor, read, also_read, written, alpha, beta;
};
ConvolutionNames NamesOf(DescriptorType type) {
  switch (type) {
    case DescriptorType::kOperationConvolutionForward:
      return {Attribute::kOperationConvolutionForwardDescriptor,
              Attribute::kOperationConvolutionForwardX,
              Attribute::kOperationConvolutionForwardW,
              Attribute::kOperationConvolutionForwardY,
              Attribute::kOperationConvolutionForwardAlpha,
              Attribute::kOperationConvolutionForwardBeta};
    case DescriptorType::kOperationConvolutionBackwardData:
      return {
          Attribute::kOperationConvolutionDataDescriptor, Attribute::kOperationConvolutionDataDy,
          Attribute::kOperationConvolutionDataW,          Attribute::kOperationConvolutionDataDx,
          Attribute::kOperationConvolutionDataAlpha,      Attribute::kOperationConvolutionDataBeta};
    default:
      return {Attribute::kOperationConvolutionFilterDescriptor,
              Attribute::kOperationConvolutionFilterX,
              Attribute::kOperationConvolutionFilterDy,
              Attribute::kOperationConvolutionFilterDw,
              Attribute::kOperationConvolutionFilterAlpha,
              Attribute::kOperationConvolutionFilterBeta};
  }
}

Window WindowOf(const DescriptorObject& convolution) {
  const auto both = [&](Attribute name) {
    const std::vector<int64_t> values = convolution.All<int64_t>(name);
    return std::array{values[0], values[1]};
  };
  return {.dilations = both(Attribute::kConvolutionDilations),
          .strides = both(Attribute::kConvolutionStrides),
          .before = both(Attribute::kConvolutionPrePaddings),
          .after = both(Attribute::kConvolutionPostPaddings),
          .mode = convolution.One<api::ConvolutionMode>(Attribute::kConvolutionMode),
          .compute_type = convolution.One<api::DataType>(Attribute::kConvolutionCompType)};
}

// Adds an operation and its tensors. Returns why that is impossible, or "".
std::string AddTo(Graph& graph, const DescriptorObject& of) {
  const auto refers = [&](Attribute name) -> int64_t {
    if (!of.Has(name)) return -1;
    const Tensor tensor = TensorOf(FindDescriptor(of.One<api::Descriptor>(name)));
    const auto [known, is_new] = graph.tensors.emplace(tensor.id, tensor);
    return is_new || known->second == tensor ? tensor.id : -2;
  };
  Operation operation = {.type = of.type};
  switch (of.type) {
    case DescriptorType::kOperationMatmul:
      operation.x = refers(Attribute::kOperationMatmulA);
      operation.b = refers(Attribute::kOperationMatmulB);
      operation.y = refers(Attribute::kOperationMatmulC);
      break;
    case DescriptorType::kOperationReduction: {
      const DescriptorObject& reduction =
          FindDescriptor(of.One<api::Descriptor>(Attribute::kOperationReductionDescriptor));
      operation.reduce = reduction.One<api::ReduceOperator>(Attribute::kReductionOperator);
      operation.x = refers(Attribute::kOperationReductionX);
      operation.y = refers(Attribute::kOperationReductionY);
      break;
    }
    case DescriptorType::kOperationReshape:
      operation.x = refers(Attribute::kOperationReshapeX);
      operation.y = refers(Attribute::kOperationReshapeY);
      break;
    case DescriptorType::kOperationConvolutionForward:
    case DescriptorType::kOperationConvolutionBackwardData:
    case DescriptorType::kOperationConvolutionBackwardFilter: {
      const ConvolutionNames names = NamesOf(of.type);
      if (of.One<float>(names.alpha) != 1.0F || of.One<float>(names.beta) != 0.0F) {
        return "the stand-in does not scale convolutions";
      }
      operation.window = WindowOf(FindDescriptor(of.One<api::Descriptor>(names.descriptor)));
      operation.x = refers(names.read);
      operation.b = refers(names.also_read);
      operation.y = refers(names.written);
      break;
    }
    default: {
      const DescriptorObject& pointwise =
          FindDescriptor(of.One<api::Descriptor>(Attribute::kOperationPointwiseDescriptor));
      operation.mode = pointwise.One<api::PointwiseMode>(Attribute::kPointwiseMode);
      operation.precision = pointwise.One<api::DataType>(Attribute::kPointwiseMathPrecision);
      operation.axis = pointwise.One<int64_t>(Attribute::kPointwiseAxis, -1);
      operation.x = refers(Attribute::kOperationPointwiseX);
      operation.b = refers(Attribute::kOperationPointwiseB);
      operation.t = refers(Attribute::kOperationPointwiseT);
      operation.y = refers(Attribute::kOperationPointwiseY);
    }
  }
  if (std::min({operation.x, operation.b, operation.t, operation.y}) == -2) {
    return "two tensors have the same id";
  }
  graph.operations.push_back(operation);
  return IsConvolution(of.type) ? graph.CheckConvolution(operation) : "";
}

Status FinalizeGraph(DescriptorObject& descriptor, std::string& reason) {
  auto graph = std::make_shared<Graph>();
  graph->gpu = FindHandle(descriptor.One<api::Handle>(Attribute::kOperationGraphHandle))->gpu;
  for (const auto operation : descriptor.All<api::Descriptor>(Attribute::kOperationGraphOps)) {
    reason = AddTo(*graph, FindDescriptor(operation));
    if (!reason.empty()) return Status::kBadParam;
  }
  reason = graph->Check();
  if (!reason.empty()) return Status::kNotSupported;
  descriptor.graph = std::move(graph);
  return Status::kSuccess;
}

Status FinalizePlan(DescriptorObject& descriptor, std::string& reason) {
  const Engine engine =
      FindDescriptor(descriptor.One<api::Descriptor>(Attribute::kExecutionPlanEngineConfig)).engine;
  const api::Context& handle =
      *FindHandle(descriptor.One<api::Handle>(Attribute::kExecutionPlanHandle));
  const cuda::CudnnFaults faults = cuda::cudnn_faults();
  if (handle.gpu != engine.graph->gpu || handle.gpu != cuda::CurrentGpu()) {
    reason = "the graph is of another GPU, or another one is current";
    return Status::kBadParam;
  }
  if (faults.uncompiled.contains(engine.number)) {
    reason = "the engine does not compile";
    return Status::kNotSupported;
  }
  descriptor.engine = engine;
  descriptor.workspace_bytes = engine.workspace_bytes;
  if (faults.greedy.contains(engine.number)) descriptor.workspace_bytes = int64_t{1} << 30;
  return Status::kSuccess;
}

}  // namespace

DescriptorObject& FindDescriptor(api::Descriptor descriptor) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const auto found = objects.descriptors.find(descriptor);
  STAGECOACH_CHECK(found != objects.descriptors.end(),
                   "cuDNN: a descriptor is used after it was destroyed, or was never created");
  return *found->second;
}

api::Context* FindHandle(api::Handle handle) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const auto found = objects.handles.find(handle);
  return found == objects.handles.end() ? nullptr : found->second.get();
}

api::Descriptor AddDescriptor(api::DescriptorType type) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  auto descriptor = std::make_unique<DescriptorObject>(DescriptorObject{.type = type});
  api::Descriptor const address = descriptor.get();
  objects.descriptors.emplace(address, std::move(descriptor));
  cuda::CountCudnnObject(1);
  return address;
}

void RemoveDescriptor(api::Descriptor descriptor) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  STAGECOACH_CHECK(objects.descriptors.erase(descriptor) == 1,
                   "cuDNN: a descriptor is destroyed twice, or was never created");
  cuda::CountCudnnObject(-1);
}

api::Handle AddHandle(int gpu) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  auto handle = std::make_unique<api::Context>(api::Context{.gpu = gpu});
  api::Handle const address = handle.get();
  objects.handles.emplace(address, std::move(handle));
  cuda::CountCudnnObject(1);
  return address;
}

bool RemoveHandle(api::Handle handle) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  if (objects.handles.erase(handle) == 0) return false;
  cuda::CountCudnnObject(-1);
  return true;
}

size_t BytesOf(AttributeType type) {
  switch (type) {
    case AttributeType::kBoolean:
      return sizeof(bool);
    case AttributeType::kInt64:
      return sizeof(int64_t);
    case AttributeType::kHandle:
    case AttributeType::kVoidPointer:
    case AttributeType::kDescriptor:
      return sizeof(void*);
    default:
      return sizeof(int);
  }
}

Status SetAttribute(DescriptorObject& descriptor, Attribute name, AttributeType type, int64_t count,
                    const void* values, const char*& reason) {
  const auto* const rule = std::ranges::find_if(
      kRules, [&](const Rule& each) { return each.of == descriptor.type && each.name == name; });
  reason = "the descriptor has no such attribute";
  if (rule == std::end(kRules)) return Status::kBadParam;
  reason = "the attribute is of another type, or of another number of values";
  if (rule->type != type || count < rule->least || count > rule->most || values == nullptr) {
    return Status::kBadParam;
  }
  reason = "the descriptor is finalized";
  if (descriptor.is_finalized) return Status::kBadParam;
  const auto* const bytes = static_cast<const std::byte*>(values);
  DescriptorObject::Values set = {
      .type = type, .bytes = {bytes, bytes + static_cast<size_t>(count) * BytesOf(type)}};
  descriptor.attributes[name] = std::move(set);
  if (type == AttributeType::kHandle) {
    reason = "there is no such handle";
    return FindHandle(descriptor.One<api::Handle>(name)) == nullptr ? Status::kBadParam
                                                                    : Status::kSuccess;
  }
  if (type != AttributeType::kDescriptor) return Status::kSuccess;
  reason = "a descriptor is not finalized, or of another type";
  for (const auto each : descriptor.All<api::Descriptor>(name)) {
    if (each == nullptr) return Status::kBadParam;
    const DescriptorObject& referred = FindDescriptor(each);
    const bool fits = name == Attribute::kOperationGraphOps ? IsOperation(referred.type)
                                                            : referred.type == rule->refers_to;
    if (!referred.is_finalized || !fits) return Status::kBadParam;
  }
  return Status::kSuccess;
}

Status Finalize(DescriptorObject& descriptor, std::string& reason) {
  for (const Rule& rule : kRules) {
    if (rule.of == descriptor.type && rule.is_required && !descriptor.Has(rule.name)) {
      reason = "a required attribute is not set";
      return Status::kBadParam;
    }
  }
  Status status = Status::kSuccess;
  if (descriptor.is_finalized) {
    reason = "it is finalized already";
    status = Status::kBadParam;
  } else if (descriptor.type == DescriptorType::kTensor) {
    const char* const why = CheckTensor(TensorOf(descriptor));
    if (why != nullptr) {
      reason = why;
      status = Status::kBadParam;
    }
  } else if (descriptor.type == DescriptorType::kConvolution) {
    const char* const why = CheckConvolution(descriptor);
    if (why != nullptr) {
      reason = why;
      status = Status::kBadParam;
    }
  } else if (descriptor.type == DescriptorType::kOperationGraph) {
    status = FinalizeGraph(descriptor, reason);
  } else if (descriptor.type == DescriptorType::kExecutionPlan) {
    status = FinalizePlan(descriptor, reason);
  }
  descriptor.is_finalized = status == Status::kSuccess;
  return status;
}

}  // namespace stagecoach::testing::cudnn
