#include "kernels/cuda/cudnn/graph.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/handles.h"

namespace stagecoach::kernels::cudnn {
namespace {

// The most engines and knobs that are requested; cuDNN 9.19 has at most 4 for attention and 40 for
// convolutions.
constexpr size_t kMaxEngines = 64, kMaxKnobs = 32, kMaxNotes = 16;

absl::StatusOr<std::vector<OwnedDescriptor>> CreateSome(const Api& api, DescriptorType type,
                                                        size_t count) {
  std::vector<OwnedDescriptor> owned(count);
  for (OwnedDescriptor& each : owned) {
    ASSIGN_OR_RETURN(each, OwnedDescriptor::Create(api, type));
  }
  return owned;
}

// Returns how many elements there are.
template <typename T>
absl::StatusOr<size_t> Get(const Api& api, Descriptor from, Attribute name, AttributeType type,
                           absl::Span<T> values) {
  int64_t count = 0;
  RETURN_IF_ERROR(ToStatus(api,
                           api.get_attribute(from, name, type, static_cast<int64_t>(values.size()),
                                             &count, values.data()),
                           "cudnnBackendGetAttribute"));
  return static_cast<size_t>(std::clamp<int64_t>(count, 0, static_cast<int64_t>(values.size())));
}

template <typename T>
absl::StatusOr<T> GetOne(const Api& api, Descriptor from, Attribute name, AttributeType type) {
  T value{};
  ASSIGN_OR_RETURN(const size_t count, Get(api, from, name, type, absl::Span<T>(&value, 1)));
  if (count == 1) return value;
  return absl::InternalError("cudnnBackendGetAttribute: there is no value");
}

// Returns descriptors of other objects: empty ones are made to be filled with them.
absl::StatusOr<std::vector<OwnedDescriptor>> GetDescriptors(const Api& api, Descriptor from,
                                                            Attribute name, DescriptorType type,
                                                            size_t capacity) {
  ASSIGN_OR_RETURN(std::vector<OwnedDescriptor> owned, CreateSome(api, type, capacity));
  std::vector<Descriptor> descriptors;
  for (const OwnedDescriptor& each : owned) descriptors.push_back(each.get());
  ASSIGN_OR_RETURN(const size_t count,
                   Get(api, from, name, AttributeType::kDescriptor, absl::MakeSpan(descriptors)));
  owned.resize(count);
  return owned;
}

// Returns the number of an engine; -1 if it has an unwanted note.
absl::StatusOr<int64_t> EngineWithout(absl::Span<const NumericalNote> unwanted, const Api& api,
                                      const OwnedDescriptor& configuration) {
  ASSIGN_OR_RETURN(const std::vector<OwnedDescriptor> engines,
                   GetDescriptors(api, configuration.get(), Attribute::kEngineConfigEngine,
                                  DescriptorType::kEngine, 1));
  if (engines.empty()) return absl::InternalError("cuDNN: a configuration without an engine");
  const Descriptor engine = engines[0].get();
  std::array<NumericalNote, kMaxNotes> notes = {};
  ASSIGN_OR_RETURN(const size_t count, Get(api, engine, Attribute::kEngineNumericalNote,
                                           AttributeType::kNumericalNote, absl::MakeSpan(notes)));
  for (const NumericalNote note : absl::MakeConstSpan(notes).subspan(0, count)) {
    if (std::find(unwanted.begin(), unwanted.end(), note) != unwanted.end()) return -1;
  }
  return GetOne<int64_t>(api, engine, Attribute::kEngineGlobalIndex, AttributeType::kInt64);
}

absl::Status AddKnobs(const Api& api, const OwnedDescriptor& configuration, Choice& choice) {
  ASSIGN_OR_RETURN(const std::vector<OwnedDescriptor> knobs,
                   GetDescriptors(api, configuration.get(), Attribute::kEngineConfigKnobChoices,
                                  DescriptorType::kKnobChoice, kMaxKnobs));
  for (const OwnedDescriptor& knob : knobs) {
    ASSIGN_OR_RETURN(const int type, GetOne<int>(api, knob.get(), Attribute::kKnobChoiceKnobType,
                                                 AttributeType::kKnobType));
    ASSIGN_OR_RETURN(
        choice[absl::StrCat("knob", type)],
        GetOne<int64_t>(api, knob.get(), Attribute::kKnobChoiceKnobValue, AttributeType::kInt64));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- Descriptors.

absl::StatusOr<OwnedDescriptor> OwnedDescriptor::Create(const Api& api, DescriptorType type) {
  Descriptor descriptor = nullptr;
  RETURN_IF_ERROR(
      ToStatus(api, api.create_descriptor(type, &descriptor), "cudnnBackendCreateDescriptor"));
  return OwnedDescriptor(api, descriptor);
}

absl::Status OwnedDescriptor::SetValues(Attribute name, AttributeType type, int64_t count,
                                        const void* values) const {
  return ToStatus(*api_, api_->set_attribute(descriptor_, name, type, count, values),
                  "cudnnBackendSetAttribute");
}

absl::Status OwnedDescriptor::Finalize() const {
  return ToStatus(*api_, api_->finalize(descriptor_), "cudnnBackendFinalize");
}

// ---- Handles.

absl::StatusOr<std::shared_ptr<const GpuHandle>> SharedGpuHandle::Get() {
  base::MutexLock lock(mutex_);
  if (!handle_.has_value()) handle_ = GpuHandle::Create(gpu_);
  return *handle_;
}

absl::StatusOr<std::shared_ptr<const GpuHandle>> GpuHandle::Create(int gpu) {
  ASSIGN_OR_RETURN(const Api* const api, Open());
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  Handle handle = nullptr;
  RETURN_IF_ERROR(ToStatus(*api, api->create(&handle), "cudnnCreate"));
  return std::shared_ptr<const GpuHandle>(new GpuHandle(gpu, *api, handle));
}

absl::StatusOr<std::shared_ptr<const GpuHandle>> GpuHandle::Describe(const std::string& json) {
  ASSIGN_OR_RETURN(const Api* const api, Open());
  ASSIGN_OR_RETURN(OwnedDescriptor properties,
                   OwnedDescriptor::Create(*api, DescriptorType::kDeviceProperties));
  RETURN_IF_ERROR(properties.Set(Attribute::kDevicePropertiesJson, AttributeType::kChar,
                                 absl::MakeConstSpan(json)));
  RETURN_IF_ERROR(properties.Finalize());
  std::shared_ptr<GpuHandle> described(new GpuHandle(/*gpu=*/-1, *api, /*handle=*/nullptr));
  described->properties_ = std::move(properties);
  return described;
}

GpuHandle::~GpuHandle() {
  if (handle_ == nullptr) return;
  const GpuScope scope(gpu_);
  static_cast<void>(api_.destroy(handle_));
}

absl::Status GpuHandle::Execute(cudaStream_t stream, Descriptor plan,
                                Descriptor variant_pack) const {
  base::MutexLock lock(mutex_);
  RETURN_IF_ERROR(ToStatus(api_, api_.set_stream(handle_, stream), "cudnnSetStream"));
  return ToStatus(api_, api_.execute(handle_, plan, variant_pack), "cudnnBackendExecute");
}

// ---- Graphs.

template <typename Fill>
Descriptor GraphBuilder::Add(DescriptorType type, Fill fill) {
  const auto create = [&]() -> absl::StatusOr<OwnedDescriptor> {
    ASSIGN_OR_RETURN(OwnedDescriptor descriptor, OwnedDescriptor::Create(api_, type));
    RETURN_IF_ERROR(fill(descriptor));
    RETURN_IF_ERROR(descriptor.Finalize());
    return descriptor;
  };
  if (!status_.ok()) return nullptr;
  absl::StatusOr<OwnedDescriptor> created = create();
  status_ = created.status();
  if (!status_.ok()) return nullptr;
  graph_.parts.push_back(*std::move(created));
  return graph_.parts.back().get();
}

template <typename Fill>
void GraphBuilder::AddOperation(DescriptorType type, Fill fill) {
  if (const Descriptor operation = Add(type, fill); operation != nullptr) {
    operations_.push_back(operation);
  }
}

Descriptor GraphBuilder::Tensor(int64_t id, DataType type, const Dimensions& dimensions,
                                const Dimensions& strides, bool is_virtual, bool is_by_value) {
  return Add(DescriptorType::kTensor, [&](const OwnedDescriptor& tensor) -> absl::Status {
    constexpr int64_t kAlignment = 16;
    RETURN_IF_ERROR(tensor.Set(Attribute::kTensorDataType, AttributeType::kDataType, type));
    RETURN_IF_ERROR(tensor.Set(Attribute::kTensorDimensions, AttributeType::kInt64,
                               absl::MakeConstSpan(dimensions)));
    RETURN_IF_ERROR(
        tensor.Set(Attribute::kTensorStrides, AttributeType::kInt64, absl::MakeConstSpan(strides)));
    RETURN_IF_ERROR(tensor.Set(Attribute::kTensorUniqueId, AttributeType::kInt64, id));
    RETURN_IF_ERROR(tensor.Set(Attribute::kTensorByteAlignment, AttributeType::kInt64, kAlignment));
    RETURN_IF_ERROR(tensor.Set(Attribute::kTensorIsVirtual, AttributeType::kBoolean, is_virtual));
    return tensor.Set(Attribute::kTensorIsByValue, AttributeType::kBoolean, is_by_value);
  });
}

void GraphBuilder::Matmul(Descriptor a, Descriptor b, Descriptor c) {
  const Descriptor matmul = Add(DescriptorType::kMatmul, [](const OwnedDescriptor& each) {
    return each.Set(Attribute::kMatmulCompType, AttributeType::kDataType, DataType::kFloat);
  });
  AddOperation(DescriptorType::kOperationMatmul, [&](const OwnedDescriptor& each) -> absl::Status {
    constexpr auto kDescriptor = AttributeType::kDescriptor;
    RETURN_IF_ERROR(each.Set(Attribute::kOperationMatmulA, kDescriptor, a));
    RETURN_IF_ERROR(each.Set(Attribute::kOperationMatmulB, kDescriptor, b));
    RETURN_IF_ERROR(each.Set(Attribute::kOperationMatmulC, kDescriptor, c));
    return each.Set(Attribute::kOperationMatmulDescriptor, kDescriptor, matmul);
  });
}

namespace {

// The attributes of an operation that correspond to those of the two others.
struct ConvolutionAttributes {
  Attribute descriptor, x, w, y, alpha, beta;
};
ConvolutionAttributes AttributesOf(DescriptorType operation) {
  switch (operation) {
    case DescriptorType::kOperationConvolutionBackwardData:
      return {
          Attribute::kOperationConvolutionDataDescriptor, Attribute::kOperationConvolutionDataDx,
          Attribute::kOperationConvolutionDataW,          Attribute::kOperationConvolutionDataDy,
          Attribute::kOperationConvolutionDataAlpha,      Attribute::kOperationConvolutionDataBeta};
    case DescriptorType::kOperationConvolutionBackwardFilter:
      return {Attribute::kOperationConvolutionFilterDescriptor,
              Attribute::kOperationConvolutionFilterX,
              Attribute::kOperationConvolutionFilterDw,
              Attribute::kOperationConvolutionFilterDy,
              Attribute::kOperationConvolutionFilterAlpha,
              Attribute::kOperationConvolutionFilterBeta};
    default:
      return {Attribute::kOperationConvolutionForwardDescriptor,
              Attribute::kOperationConvolutionForwardX,
              Attribute::kOperationConvolutionForwardW,
              Attribute::kOperationConvolutionForwardY,
              Attribute::kOperationConvolutionForwardAlpha,
              Attribute::kOperationConvolutionForwardBeta};
  }
}

}  // namespace

void GraphBuilder::Convolution(DescriptorType operation, const Window& window, Descriptor x,
                               Descriptor w, Descriptor y) {
  const auto fill_window = [&](const OwnedDescriptor& each) -> absl::Status {
    constexpr auto kInt64 = AttributeType::kInt64;
    using Axes = std::array<int64_t, 2>;
    constexpr Axes kDense = {1, 1};
    const Axes strides = {window.stride, window.stride};
    const Axes paddings = {window.padding, window.padding};
    RETURN_IF_ERROR(
        each.Set(Attribute::kConvolutionCompType, AttributeType::kDataType, DataType::kFloat));
    RETURN_IF_ERROR(each.Set(Attribute::kConvolutionMode, AttributeType::kConvolutionMode,
                             ConvolutionMode::kCrossCorrelation));
    RETURN_IF_ERROR(each.Set(Attribute::kConvolutionSpatialDimensions, kInt64, int64_t{2}));
    RETURN_IF_ERROR(
        each.Set(Attribute::kConvolutionDilations, kInt64, absl::MakeConstSpan(kDense)));
    RETURN_IF_ERROR(each.Set(Attribute::kConvolutionStrides, kInt64, absl::MakeConstSpan(strides)));
    RETURN_IF_ERROR(
        each.Set(Attribute::kConvolutionPrePaddings, kInt64, absl::MakeConstSpan(paddings)));
    return each.Set(Attribute::kConvolutionPostPaddings, kInt64, absl::MakeConstSpan(paddings));
  };
  const Descriptor convolution = Add(DescriptorType::kConvolution, fill_window);
  const ConvolutionAttributes names = AttributesOf(operation);
  AddOperation(operation, [&](const OwnedDescriptor& each) -> absl::Status {
    constexpr auto kDescriptor = AttributeType::kDescriptor;
    RETURN_IF_ERROR(each.Set(names.descriptor, kDescriptor, convolution));
    RETURN_IF_ERROR(each.Set(names.x, kDescriptor, x));
    RETURN_IF_ERROR(each.Set(names.w, kDescriptor, w));
    RETURN_IF_ERROR(each.Set(names.y, kDescriptor, y));
    RETURN_IF_ERROR(each.Set(names.alpha, AttributeType::kFloat, 1.0F));
    return each.Set(names.beta, AttributeType::kFloat, 0.0F);
  });
}

void GraphBuilder::Pointwise(PointwiseMode mode, DataType precision, std::optional<int64_t> axis,
                             Descriptor x, Descriptor b, Descriptor y, Descriptor t) {
  const Descriptor pointwise =
      Add(DescriptorType::kPointwise, [&](const OwnedDescriptor& each) -> absl::Status {
        RETURN_IF_ERROR(each.Set(Attribute::kPointwiseMode, AttributeType::kPointwiseMode, mode));
        RETURN_IF_ERROR(
            each.Set(Attribute::kPointwiseMathPrecision, AttributeType::kDataType, precision));
        if (!axis.has_value()) return absl::OkStatus();
        return each.Set(Attribute::kPointwiseAxis, AttributeType::kInt64, *axis);
      });
  AddOperation(
      DescriptorType::kOperationPointwise, [&](const OwnedDescriptor& each) -> absl::Status {
        constexpr auto kDescriptor = AttributeType::kDescriptor;
        RETURN_IF_ERROR(each.Set(Attribute::kOperationPointwiseDescriptor, kDescriptor, pointwise));
        RETURN_IF_ERROR(each.Set(Attribute::kOperationPointwiseX, kDescriptor, x));
        if (b != nullptr) {
          RETURN_IF_ERROR(each.Set(Attribute::kOperationPointwiseB, kDescriptor, b));
        }
        if (t != nullptr) {
          RETURN_IF_ERROR(each.Set(Attribute::kOperationPointwiseT, kDescriptor, t));
        }
        return each.Set(Attribute::kOperationPointwiseY, kDescriptor, y);
      });
}

void GraphBuilder::Reduce(ReduceOperator reduce, Descriptor x, Descriptor y) {
  const Descriptor reduction =
      Add(DescriptorType::kReduction, [&](const OwnedDescriptor& each) -> absl::Status {
        RETURN_IF_ERROR(
            each.Set(Attribute::kReductionOperator, AttributeType::kReduceOperator, reduce));
        return each.Set(Attribute::kReductionCompType, AttributeType::kDataType, DataType::kFloat);
      });
  AddOperation(
      DescriptorType::kOperationReduction, [&](const OwnedDescriptor& each) -> absl::Status {
        constexpr auto kDescriptor = AttributeType::kDescriptor;
        RETURN_IF_ERROR(each.Set(Attribute::kOperationReductionDescriptor, kDescriptor, reduction));
        RETURN_IF_ERROR(each.Set(Attribute::kOperationReductionX, kDescriptor, x));
        return each.Set(Attribute::kOperationReductionY, kDescriptor, y);
      });
}

void GraphBuilder::Reshape(Descriptor x, Descriptor y) {
  AddOperation(DescriptorType::kOperationReshape, [&](const OwnedDescriptor& each) -> absl::Status {
    RETURN_IF_ERROR(each.Set(Attribute::kOperationReshapeX, AttributeType::kDescriptor, x));
    return each.Set(Attribute::kOperationReshapeY, AttributeType::kDescriptor, y);
  });
}

absl::StatusOr<Graph> GraphBuilder::Finish(const GpuHandle& handle) {
  RETURN_IF_ERROR(status_);
  ASSIGN_OR_RETURN(graph_.whole, OwnedDescriptor::Create(api_, DescriptorType::kOperationGraph));
  RETURN_IF_ERROR(graph_.whole.Set(Attribute::kOperationGraphOps, AttributeType::kDescriptor,
                                   absl::MakeConstSpan(operations_)));
  if (handle.get() != nullptr) {
    RETURN_IF_ERROR(
        graph_.whole.Set(Attribute::kOperationGraphHandle, AttributeType::kHandle, handle.get()));
  }
  RETURN_IF_ERROR(graph_.whole.Finalize());
  return std::move(graph_);
}

// ---- Engines and plans.

namespace {

absl::StatusOr<std::vector<OwnedDescriptor>> Propose(HeuristicMode mode, const GpuHandle& handle,
                                                     const Graph& graph) {
  const Api& api = handle.api();
  ASSIGN_OR_RETURN(const OwnedDescriptor heuristic,
                   OwnedDescriptor::Create(api, DescriptorType::kEngineHeuristic));
  RETURN_IF_ERROR(heuristic.Set(Attribute::kEngineHeuristicOperationGraph,
                                AttributeType::kDescriptor, graph.whole.get()));
  RETURN_IF_ERROR(
      heuristic.Set(Attribute::kEngineHeuristicMode, AttributeType::kHeuristicMode, mode));
  if (handle.properties() != nullptr) {
    RETURN_IF_ERROR(heuristic.Set(Attribute::kEngineHeuristicDeviceProperties,
                                  AttributeType::kDescriptor, handle.properties()));
  }
  RETURN_IF_ERROR(heuristic.Finalize());
  return GetDescriptors(api, heuristic.get(), Attribute::kEngineHeuristicResults,
                        DescriptorType::kEngineConfig, kMaxEngines);
}

}  // namespace

absl::StatusOr<std::vector<Engine>> EnginesWithout(absl::Span<const NumericalNote> unwanted,
                                                   absl::Span<const HeuristicMode> modes,
                                                   const GpuHandle& handle, const Graph& graph) {
  const Api& api = handle.api();
  std::vector<Engine> engines;
  for (const HeuristicMode mode : modes) {
    absl::StatusOr<std::vector<OwnedDescriptor>> configurations = Propose(mode, handle, graph);
    if (absl::IsUnimplemented(configurations.status())) continue;
    RETURN_IF_ERROR(configurations.status());
    for (OwnedDescriptor& configuration : *configurations) {
      ASSIGN_OR_RETURN(const int64_t engine, EngineWithout(unwanted, api, configuration));
      if (engine < 0) continue;
      Choice choice = {{"cudnn", static_cast<int64_t>(api.get_version())}, {"engine", engine}};
      RETURN_IF_ERROR(AddKnobs(api, configuration, choice));
      const bool is_new = std::none_of(engines.begin(), engines.end(),
                                       [&](const Engine& known) { return known.choice == choice; });
      if (is_new) engines.push_back({std::move(configuration), std::move(choice)});
    }
  }
  return engines;
}

absl::StatusOr<std::vector<Engine>> DeterministicEngines(const GpuHandle& handle,
                                                         const Graph& graph) {
  return EnginesWithout({NumericalNote::kNondeterministic}, {HeuristicMode::kA}, handle, graph);
}

absl::StatusOr<ExecutionPlan> ExecutionPlan::Create(std::shared_ptr<const GpuHandle> handle,
                                                    const Engine& engine) {
  const Api& api = handle->api();
  ASSIGN_OR_RETURN(OwnedDescriptor plan,
                   OwnedDescriptor::Create(api, DescriptorType::kExecutionPlan));
  if (handle->get() != nullptr) {
    RETURN_IF_ERROR(
        plan.Set(Attribute::kExecutionPlanHandle, AttributeType::kHandle, handle->get()));
  } else {
    RETURN_IF_ERROR(plan.Set(Attribute::kExecutionPlanDeviceProperties, AttributeType::kDescriptor,
                             handle->properties()));
  }
  RETURN_IF_ERROR(plan.Set(Attribute::kExecutionPlanEngineConfig, AttributeType::kDescriptor,
                           engine.configuration.get()));
  RETURN_IF_ERROR(plan.Finalize());
  ASSIGN_OR_RETURN(const int64_t workspace_bytes,
                   GetOne<int64_t>(api, plan.get(), Attribute::kExecutionPlanWorkspaceSize,
                                   AttributeType::kInt64));
  return ExecutionPlan(std::move(handle), std::move(plan), workspace_bytes);
}

absl::Status ExecutionPlan::Execute(cudaStream_t stream, absl::Span<const Operand> operands,
                                    void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  for (const Operand& operand : operands) {
    ids.push_back(operand.id);
    addresses.push_back(operand.data);
  }
  ASSIGN_OR_RETURN(const OwnedDescriptor pack,
                   OwnedDescriptor::Create(handle_->api(), DescriptorType::kVariantPack));
  RETURN_IF_ERROR(
      pack.Set(Attribute::kVariantPackUniqueIds, AttributeType::kInt64, absl::MakeConstSpan(ids)));
  RETURN_IF_ERROR(pack.Set(Attribute::kVariantPackDataPointers, AttributeType::kVoidPointer,
                           absl::MakeConstSpan(addresses)));
  RETURN_IF_ERROR(
      pack.Set(Attribute::kVariantPackWorkspace, AttributeType::kVoidPointer, workspace));
  RETURN_IF_ERROR(pack.Finalize());
  constexpr int64_t kMostKernels = 6;  // cuDNN 9.19's
  IssueCount::Add(kMostKernels);
  return handle_->Execute(stream, plan_.get(), pack.get());
}

}  // namespace stagecoach::kernels::cudnn
