#ifndef STAGECOACH_KERNELS_CUDA_CUDNN_GRAPH_H_
#define STAGECOACH_KERNELS_CUDA_CUDNN_GRAPH_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/tuning/tuning_table.h"

// Computations in cuDNN's terms: operations between tensors of four dimensions, which it fuses into
// kernels. A tensor is an operand, which is in memory, a scalar of the host, or virtual: the result
// of one operation that others read.
namespace stagecoach::kernels::cudnn {

using Dimensions = std::array<int64_t, 4>;

class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  static absl::StatusOr<OwnedDescriptor> Create(const Api& api, DescriptorType type);
  OwnedDescriptor(OwnedDescriptor&& other) noexcept
      : api_(other.api_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OwnedDescriptor() {
    if (descriptor_ != nullptr) static_cast<void>(api_->destroy_descriptor(descriptor_));
  }

  Descriptor get() const { return descriptor_; }

  template <typename T>
  absl::Status Set(Attribute name, AttributeType type, absl::Span<const T> values) const {
    return SetValues(name, type, static_cast<int64_t>(values.size()), values.data());
  }
  template <typename T>
  absl::Status Set(Attribute name, AttributeType type, const T& value) const {
    return SetValues(name, type, 1, &value);
  }
  absl::Status Finalize() const;

 private:
  OwnedDescriptor(const Api& api, Descriptor descriptor) : api_(&api), descriptor_(descriptor) {}
  absl::Status SetValues(Attribute name, AttributeType type, int64_t count,
                         const void* values) const;

  const Api* api_ = nullptr;
  Descriptor descriptor_ = nullptr;
};

// cuDNN's handle for one GPU, which must be current where graphs, engines and plans are made and
// plans run. Thread-safe.
class GpuHandle {
 public:
  // Unavailable: Open failed, or the library cannot use the GPU.
  static absl::StatusOr<std::shared_ptr<const GpuHandle>> Create(int gpu);
  // Describes a GPU that need not exist, by its properties in the library's JSON format: graphs can
  // be made for it, engines found and kernels compiled, but nothing runs.
  static absl::StatusOr<std::shared_ptr<const GpuHandle>> Describe(const std::string& json);
  ~GpuHandle();
  GpuHandle(const GpuHandle&) = delete;
  GpuHandle& operator=(const GpuHandle&) = delete;

  int gpu() const { return gpu_; }
  const Api& api() const { return api_; }
  Handle get() const { return handle_; }                       // null for a described GPU
  Descriptor properties() const { return properties_.get(); }  // null for an existing GPU

  // Runs a plan in the stream's order.
  absl::Status Execute(cudaStream_t stream, Descriptor plan, Descriptor variant_pack) const;

 private:
  GpuHandle(int gpu, const Api& api, Handle handle) : gpu_(gpu), api_(api), handle_(handle) {}

  const int gpu_;
  const Api& api_;
  const Handle handle_;
  OwnedDescriptor properties_;
  mutable base::Mutex mutex_;  // a handle has one stream at a time
};

// The same stride and padding along both axes of images, which are padded with zeros.
struct Window {
  int64_t stride = 1, padding = 0;
};

// The handle of one GPU, created at the first request. Thread-safe.
class SharedGpuHandle {
 public:
  explicit SharedGpuHandle(int gpu) : gpu_(gpu) {}

  int gpu() const { return gpu_; }
  // Returns the same handle each time, or the same error: one of GpuHandle::Create.
  absl::StatusOr<std::shared_ptr<const GpuHandle>> Get();

 private:
  const int gpu_;
  base::Mutex mutex_;
  std::optional<absl::StatusOr<std::shared_ptr<const GpuHandle>>> handle_ ABSL_GUARDED_BY(mutex_);
};

struct Graph {
  std::vector<OwnedDescriptor> parts;
  OwnedDescriptor whole;
};

// Builds a graph. If a call cannot make its result, it returns null; Finish returns the first
// error.
class GraphBuilder {
 public:
  explicit GraphBuilder(const Api& api) : api_(api) {}

  // Adds a tensor in memory, at an address that is a multiple of 16. Operands and scalars have
  // numbers from 1 to 999, all different.
  Descriptor Operand(int64_t id, DataType type, const Dimensions& dimensions,
                     const Dimensions& strides) {
    return Tensor(id, type, dimensions, strides, /*is_virtual=*/false, /*is_by_value=*/false);
  }
  Descriptor Scalar(int64_t id) {
    constexpr Dimensions kOne = {1, 1, 1, 1};
    return Tensor(id, DataType::kFloat, kOne, kOne, /*is_virtual=*/false, /*is_by_value=*/true);
  }
  Descriptor Virtual(DataType type, const Dimensions& dimensions, const Dimensions& strides) {
    return Tensor(next_id_++, type, dimensions, strides, /*is_virtual=*/true,
                  /*is_by_value=*/false);
  }

  void Matmul(Descriptor a, Descriptor b, Descriptor c);
  // `operation` is one of the three convolutions, which write y, dw or dx.
  void Convolution(DescriptorType operation, const Window& window, Descriptor x, Descriptor w,
                   Descriptor y);
  // Computes y = x `mode` b, or `mode` of x alone; kBinarySelect selects x where t, and b
  // elsewhere.
  void Pointwise(PointwiseMode mode, Descriptor x, Descriptor b, Descriptor y,
                 Descriptor t = nullptr) {
    Pointwise(mode, DataType::kFloat, std::nullopt, x, b, y, t);
  }
  // Computes y = x >= b.
  void GreaterOrEqual(Descriptor x, Descriptor b, Descriptor y) {
    Pointwise(PointwiseMode::kCmpGe, DataType::kBoolean, std::nullopt, x, b, y, nullptr);
  }
  // Sets y to each number's index along `axis`.
  void Index(int64_t axis, Descriptor x, Descriptor y) {
    Pointwise(PointwiseMode::kGenIndex, DataType::kFloat, axis, x, nullptr, y, nullptr);
  }
  // Reduces along the dimensions in which y is smaller than x.
  void Reduce(ReduceOperator reduce, Descriptor x, Descriptor y);
  // Sets y to the same numbers, each at the same place in memory.
  void Reshape(Descriptor x, Descriptor y);

  absl::StatusOr<Graph> Finish(const GpuHandle& handle);

 private:
  Descriptor Tensor(int64_t id, DataType type, const Dimensions& dimensions,
                    const Dimensions& strides, bool is_virtual, bool is_by_value);
  void Pointwise(PointwiseMode mode, DataType precision, std::optional<int64_t> axis, Descriptor x,
                 Descriptor b, Descriptor y, Descriptor t);
  // Adds a descriptor, whose attributes `fill` sets; null if anything fails.
  template <typename Fill>
  Descriptor Add(DescriptorType type, Fill fill);
  template <typename Fill>
  void AddOperation(DescriptorType type, Fill fill);

  const Api& api_;
  absl::Status status_;
  int64_t next_id_ = 1000;
  Graph graph_;
  std::vector<Descriptor> operations_;
};

// A way of the library to run a graph: an engine and its knobs.
struct Engine {
  OwnedDescriptor configuration;
  Choice choice;  // includes the version of the library
};
// Returns the engines that the library proposes in `modes`, one mode after the other, without those
// that have one of the notes `unwanted`; the best first. No two are the same.
absl::StatusOr<std::vector<Engine>> EnginesWithout(absl::Span<const NumericalNote> unwanted,
                                                   absl::Span<const HeuristicMode> modes,
                                                   const GpuHandle& handle, const Graph& graph);
// Returns the engines of mode A that compute the same bits every time.
absl::StatusOr<std::vector<Engine>> DeterministicEngines(const GpuHandle& handle,
                                                         const Graph& graph);

// A graph that is ready to be run by one of the engines.
class ExecutionPlan {
 public:
  // Compiles kernels, which may take a second.
  static absl::StatusOr<ExecutionPlan> Create(std::shared_ptr<const GpuHandle> handle,
                                              const Engine& engine);

  int64_t workspace_bytes() const { return workspace_bytes_; }

  struct Operand {
    int64_t id;
    const void* data;
  };
  // `operands` are all operands and scalars of the graph.
  absl::Status Execute(cudaStream_t stream, absl::Span<const Operand> operands,
                       void* workspace) const;

 private:
  ExecutionPlan(std::shared_ptr<const GpuHandle> handle, OwnedDescriptor plan,
                int64_t workspace_bytes)
      : handle_(std::move(handle)), plan_(std::move(plan)), workspace_bytes_(workspace_bytes) {}

  std::shared_ptr<const GpuHandle> handle_;  // outlives the plan
  OwnedDescriptor plan_;
  int64_t workspace_bytes_;
};

}  // namespace stagecoach::kernels::cudnn

#endif  // STAGECOACH_KERNELS_CUDA_CUDNN_GRAPH_H_
