#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/cudnn/api.h"
#include "tests/testing/cuda/cudnn/convolution.h"
#include "tests/testing/cuda/cudnn/faults.h"
#include "tests/testing/cuda/cudnn/graph.h"
#include "tests/testing/cuda/cudnn/objects.h"
#include "tests/testing/cuda/machine.h"
#include "tests/testing/cuda/stand_in.h"

// The part of cuDNN that the backend uses: graphs of causal attention and of convolutions, under
// the names of the real library, which the backend finds in its process. Engines are as in cuDNN
// 9.19. Attributes are checked as the library does, and more strictly where that is lax.
namespace stagecoach::testing::cudnn {
namespace {

using api::Attribute;
using api::AttributeType;
using api::Descriptor;
using api::DescriptorType;
using api::Status;

// The thread's last error, as in the library.
std::string& LastError() {
  thread_local std::string text;
  return text;
}

Status Refuse(Status status, std::string reason) {
  LastError() = std::move(reason);
  return status;
}

// Returns the engines that are proposed for a graph, the best first.
std::vector<Engine> EnginesOf(const std::shared_ptr<const Graph>& graph, api::HeuristicMode mode) {
  using Note = api::NumericalNote;
  if (graph->is_convolution()) return ConvolutionEngines(graph, mode);
  if (mode != api::HeuristicMode::kA) return {};
  const int64_t bytes = graph->WorkspaceBytes();
  if (graph->is_backward()) {
    return {{8, 1, graph, bytes, {Note::kTensorCore, Note::kNondeterministic}},
            {6, 26, graph, bytes, {Note::kTensorCore}},
            {7, 26, graph, bytes, {Note::kTensorCore}}};
  }
  return {{2, 7, graph, bytes, {Note::kTensorCore}}, {1, 3, graph, 0, {Note::kTensorCore}}};
}

// Answers with as many of `values` as there is room for.
template <typename T>
Status Give(const std::vector<T>& values, int64_t capacity, int64_t* count, void* to) {
  const size_t given = std::min(values.size(), static_cast<size_t>(capacity));
  if (given > 0) std::memcpy(to, values.data(), given * sizeof(T));
  *count = static_cast<int64_t>(given);
  return Status::kSuccess;
}

// Makes the descriptors that the caller has passed describe `engines`.
Status GiveEngines(const std::vector<Engine>& engines, DescriptorType type, int64_t capacity,
                   int64_t* count, void* to) {
  std::vector<Descriptor> passed(static_cast<size_t>(capacity));
  std::memcpy(static_cast<void*>(passed.data()), to, passed.size() * sizeof(Descriptor));
  *count = std::min(capacity, static_cast<int64_t>(engines.size()));
  for (size_t i = 0; i < static_cast<size_t>(*count); ++i) {
    DescriptorObject& descriptor = FindDescriptor(passed[i]);
    if (descriptor.type != type) {
      return Refuse(Status::kBadParam, "the descriptors are of another type");
    }
    descriptor.engine = engines[i];
    descriptor.is_finalized = true;
  }
  return Status::kSuccess;
}

Status GetAttribute(const DescriptorObject& from, Attribute name, AttributeType type,
                    int64_t capacity, int64_t* count, void* to) {
  const auto is = [&](DescriptorType of, Attribute wanted, AttributeType wanted_type) {
    return from.type == of && name == wanted && type == wanted_type;
  };
  const Engine& engine = from.engine;
  if (is(DescriptorType::kEngineHeuristic, Attribute::kEngineHeuristicResults,
         AttributeType::kDescriptor)) {
    const auto graph = from.One<Descriptor>(Attribute::kEngineHeuristicOperationGraph);
    const auto mode = from.One<api::HeuristicMode>(Attribute::kEngineHeuristicMode);
    return GiveEngines(EnginesOf(FindDescriptor(graph).graph, mode), DescriptorType::kEngineConfig,
                       capacity, count, to);
  }
  if (is(DescriptorType::kEngineConfig, Attribute::kEngineConfigEngine,
         AttributeType::kDescriptor)) {
    return GiveEngines({engine}, DescriptorType::kEngine, capacity, count, to);
  }
  if (is(DescriptorType::kEngineConfig, Attribute::kEngineConfigKnobChoices,
         AttributeType::kDescriptor)) {
    return GiveEngines({engine}, DescriptorType::kKnobChoice, capacity, count, to);
  }
  if (is(DescriptorType::kEngine, Attribute::kEngineGlobalIndex, AttributeType::kInt64)) {
    return Give<int64_t>({engine.number}, capacity, count, to);
  }
  if (is(DescriptorType::kEngine, Attribute::kEngineNumericalNote, AttributeType::kNumericalNote)) {
    return Give(engine.notes, capacity, count, to);
  }
  if (is(DescriptorType::kKnobChoice, Attribute::kKnobChoiceKnobType, AttributeType::kKnobType)) {
    return Give<int>({kKnobType}, capacity, count, to);
  }
  if (is(DescriptorType::kKnobChoice, Attribute::kKnobChoiceKnobValue, AttributeType::kInt64)) {
    return Give<int64_t>({engine.knob}, capacity, count, to);
  }
  if (is(DescriptorType::kExecutionPlan, Attribute::kExecutionPlanWorkspaceSize,
         AttributeType::kInt64)) {
    return Give<int64_t>({from.workspace_bytes}, capacity, count, to);
  }
  return Refuse(Status::kNotSupported, "the stand-in does not give this attribute");
}

struct Pack {
  std::map<int64_t, void*> addresses;
  std::map<int64_t, float> scalars;
  std::byte* workspace = nullptr;
};

bool IsAligned(const void* address, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) == 0;
}

// Aborts where the real library would let the GPU fault, or overwrite something, so that a test
// could not recognize the mistake.
void ExpectMemory(const Graph& graph, const Pack& pack, int64_t workspace_bytes) {
  const std::byte* const end = pack.workspace + workspace_bytes;
  STAGECOACH_CHECK(
      workspace_bytes == 0 || cuda::GpuOfMemory(pack.workspace, workspace_bytes) == graph.gpu,
      absl::StrCat("cuDNN: a workspace of ", workspace_bytes, " bytes is not in the GPU's memory"));
  for (const auto& [id, address] : pack.addresses) {
    const int64_t bytes = graph.tensors.at(id).bytes();
    const auto* const begin = static_cast<const std::byte*>(address);
    STAGECOACH_CHECK(cuda::GpuOfMemory(address, bytes) == graph.gpu,
                     absl::StrCat("cuDNN: tensor ", id, " is not in the GPU's memory"));
    STAGECOACH_CHECK(begin >= end || begin + bytes <= pack.workspace,
                     absl::StrCat("cuDNN: tensor ", id, " overlaps the workspace"));
  }
}

Status ReadPack(const Graph& graph, const DescriptorObject& from, Pack& pack) {
  const auto ids = from.All<int64_t>(Attribute::kVariantPackUniqueIds);
  const auto data = from.All<void*>(Attribute::kVariantPackDataPointers);
  if (ids.size() != data.size()) return Refuse(Status::kBadParam, "not a pointer for each id");
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto tensor = graph.tensors.find(ids[i]);
    if (tensor == graph.tensors.end() || tensor->second.is_virtual || data[i] == nullptr) {
      return Refuse(Status::kBadParam, absl::StrCat("tensor ", ids[i], " cannot be passed"));
    }
    if (tensor->second.is_by_value) {
      std::memcpy(&pack.scalars[ids[i]], data[i], sizeof(float));
    } else if (IsAligned(data[i], tensor->second.alignment)) {
      pack.addresses[ids[i]] = data[i];
    } else {
      return Refuse(Status::kBadParam, absl::StrCat("tensor ", ids[i], " is not aligned"));
    }
  }
  const auto passed = std::ranges::count_if(
      graph.tensors, [](const auto& each) { return !each.second.is_virtual; });
  if (static_cast<size_t>(passed) != pack.addresses.size() + pack.scalars.size()) {
    return Refuse(Status::kBadParam, "a tensor is not passed");
  }
  pack.workspace = from.One<std::byte*>(Attribute::kVariantPackWorkspace);
  return Status::kSuccess;
}

Status Execute(const api::Context& handle, const DescriptorObject& plan,
               const DescriptorObject& variant_pack) {
  const bool fits = plan.type == DescriptorType::kExecutionPlan && plan.is_finalized &&
                    variant_pack.type == DescriptorType::kVariantPack && variant_pack.is_finalized;
  if (!fits || plan.One<api::Handle>(Attribute::kExecutionPlanHandle) != &handle) {
    return Refuse(Status::kBadParam, "not a plan of the handle and a pack, both finalized");
  }
  if (handle.gpu != cuda::CurrentGpu() || handle.gpu != cuda::GpuOfStream(handle.stream)) {
    return Refuse(Status::kBadParam, "another GPU is current, or the stream is of another one");
  }
  const Engine& engine = plan.engine;
  Pack pack;
  const Status read = ReadPack(*engine.graph, variant_pack, pack);
  if (read != Status::kSuccess) return read;
  constexpr int64_t kAlignment = 256;
  if (plan.workspace_bytes > 0 && !IsAligned(pack.workspace, kAlignment)) {
    return Refuse(Status::kBadParam, "the workspace is not aligned");
  }
  const cuda::CudnnFaults faults = cuda::cudnn_faults();
  if (faults.failing.contains(engine.number)) {
    return Refuse(Status::kExecutionFailed, "the engine fails");
  }
  ExpectMemory(*engine.graph, pack, plan.workspace_bytes);
  const auto extra = faults.extra_ns.find(engine.number);
  const cudaError_t error = cuda::Enqueue(
      handle.stream, {.name = "cudnnBackendExecute",
                      .ready = nullptr,
                      .run =
                          [engine, pack, bytes = plan.workspace_bytes] {
                            if (bytes > 0)
                              std::memset(pack.workspace, 0xA5, static_cast<size_t>(bytes));
                            engine.graph->Compute(
                                pack.addresses, pack.scalars,
                                {.reversed = engine.number % 2 == 1,
                                 .rounded = engine.Has(api::NumericalNote::kTensorCore)});
                          },
                      .extra_ns = extra == faults.extra_ns.end() ? 0 : extra->second});
  return error == cudaSuccess ? Status::kSuccess
                              : Refuse(Status::kExecutionFailed, "the stream takes no work");
}

// Does the common part of every call.
template <typename Body>
Status Call(const char* name, Body body) {
  cuda::Progress();
  if (cuda::MustFail(name)) return Refuse(Status::kInternalError, "it fails on purpose");
  return body();
}

}  // namespace
}  // namespace stagecoach::testing::cudnn

namespace cudnn_stand_in = stagecoach::testing::cudnn;
namespace cuda_stand_in = stagecoach::testing::cuda;
namespace api = stagecoach::kernels::cudnn;

extern "C" {

size_t cudnnGetVersion() {
  return static_cast<size_t>(cuda_stand_in::Machine::Get().options().cudnn_version);
}

const char* cudnnGetErrorString(api::Status status) {
  switch (status) {
    case api::Status::kSuccess:
      return "CUDNN_STATUS_SUCCESS";
    case api::Status::kNotInitialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case api::Status::kBadParam:
      return "CUDNN_STATUS_BAD_PARAM";
    case api::Status::kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case api::Status::kInternalError:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    case api::Status::kExecutionFailed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "unknown";
}

void cudnnGetLastErrorString(char* text, size_t bytes) {
  std::strncpy(text, cudnn_stand_in::LastError().c_str(), bytes);
  cudnn_stand_in::LastError().clear();
}

api::Status cudnnCreate(api::Handle* handle) {
  return cudnn_stand_in::Call("cudnnCreate", [&] {
    const int gpu = cuda_stand_in::CurrentGpu();
    if (gpu < 0) return cudnn_stand_in::Refuse(api::Status::kNotInitialized, "there is no driver");
    *handle = cudnn_stand_in::AddHandle(gpu);
    return api::Status::kSuccess;
  });
}

api::Status cudnnDestroy(api::Handle handle) {
  cuda_stand_in::Progress();
  STAGECOACH_CHECK(cudnn_stand_in::RemoveHandle(handle),
                   "cuDNN: a handle is destroyed twice, or was never created");
  return api::Status::kSuccess;
}

api::Status cudnnSetStream(api::Handle handle, cudaStream_t stream) {
  return cudnn_stand_in::Call("cudnnSetStream", [&] {
    api::Context* const context = cudnn_stand_in::FindHandle(handle);
    if (context == nullptr || context->gpu != cuda_stand_in::GpuOfStream(stream)) {
      return cudnn_stand_in::Refuse(api::Status::kBadParam,
                                    "no handle, or a stream of another GPU");
    }
    context->stream = stream;
    return api::Status::kSuccess;
  });
}

api::Status cudnnBackendCreateDescriptor(api::DescriptorType type, api::Descriptor* descriptor) {
  return cudnn_stand_in::Call("cudnnBackendCreateDescriptor", [&] {
    *descriptor = cudnn_stand_in::AddDescriptor(type);
    return api::Status::kSuccess;
  });
}

api::Status cudnnBackendDestroyDescriptor(api::Descriptor descriptor) {
  cuda_stand_in::Progress();
  cudnn_stand_in::RemoveDescriptor(descriptor);
  return api::Status::kSuccess;
}

api::Status cudnnBackendFinalize(api::Descriptor descriptor) {
  return cudnn_stand_in::Call("cudnnBackendFinalize", [&] {
    std::string reason;
    const api::Status status =
        cudnn_stand_in::Finalize(cudnn_stand_in::FindDescriptor(descriptor), reason);
    return status == api::Status::kSuccess ? status : cudnn_stand_in::Refuse(status, reason);
  });
}

api::Status cudnnBackendSetAttribute(api::Descriptor descriptor, api::Attribute name,
                                     api::AttributeType type, int64_t count, const void* values) {
  return cudnn_stand_in::Call("cudnnBackendSetAttribute", [&] {
    const char* reason = "";
    const api::Status status = cudnn_stand_in::SetAttribute(
        cudnn_stand_in::FindDescriptor(descriptor), name, type, count, values, reason);
    return status == api::Status::kSuccess ? status : cudnn_stand_in::Refuse(status, reason);
  });
}

api::Status cudnnBackendGetAttribute(api::Descriptor descriptor, api::Attribute name,
                                     api::AttributeType type, int64_t capacity, int64_t* count,
                                     void* values) {
  return cudnn_stand_in::Call("cudnnBackendGetAttribute", [&] {
    const cudnn_stand_in::DescriptorObject& from = cudnn_stand_in::FindDescriptor(descriptor);
    if (!from.is_finalized || capacity < 1 || count == nullptr || values == nullptr) {
      return cudnn_stand_in::Refuse(api::Status::kBadParam, "not finalized, or no room for values");
    }
    return cudnn_stand_in::GetAttribute(from, name, type, capacity, count, values);
  });
}

api::Status cudnnBackendExecute(api::Handle handle, api::Descriptor plan,
                                api::Descriptor variant_pack) {
  return cudnn_stand_in::Call("cudnnBackendExecute", [&] {
    const api::Context* const context = cudnn_stand_in::FindHandle(handle);
    if (context == nullptr)
      return cudnn_stand_in::Refuse(api::Status::kBadParam, "there is no handle");
    return cudnn_stand_in::Execute(*context, cudnn_stand_in::FindDescriptor(plan),
                                   cudnn_stand_in::FindDescriptor(variant_pack));
  });
}

}  // extern "C"
