#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_CUDNN_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_CUDNN_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda/cudnn/convolution_graph.h"
#include "kernels/cuda/cudnn/graph.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/device.h"

// The passes of convolutions by cuDNN.
namespace stagecoach::kernels {

// A pass, and the engine chosen for it.
class ConvolutionPlan {
 public:
  // Addresses are multiples of 16, and the scratch's of kScratchAlignment; it has
  // ConvolutionScratchBytes.
  struct Operands {
    const void* images = nullptr;   // x or dx
    const void* weights = nullptr;  // w or dw
    const void* outputs = nullptr;  // y or dy
    const void* bias = nullptr;     // forward only, if there is one
    std::byte* scratch = nullptr;
  };

  // Creates a plan with the engine that is fastest, or that the tuning file names; without a file,
  // with the first that runs. The engine has then run, so that nothing is compiled or loaded while
  // work is captured. On a device for planning no engine is chosen, and the plan cannot run.
  static absl::StatusOr<std::unique_ptr<ConvolutionPlan>> Create(
      std::shared_ptr<const cudnn::GpuHandle> handle, cudnn::ConvolutionPass pass,
      const cudnn::ConvolutionExtents& extents, Precision precision, Tuner& tuner);
  ~ConvolutionPlan();

  absl::Status Run(cudaStream_t stream, const Operands& operands) const;

 private:
  class Bench;

  ConvolutionPlan(std::shared_ptr<const cudnn::GpuHandle> handle, cudnn::ConvolutionPass pass,
                  const cudnn::ConvolutionExtents& extents)
      : handle_(std::move(handle)), pass_(pass), extents_(extents) {}

  absl::Status Choose(Precision precision, Tuner& tuner);
  absl::StatusOr<Choice> Measure(Bench& bench);
  // Uses the first engine that runs and for which `is_wanted` is true.
  absl::Status UseFirst(Bench& bench, absl::FunctionRef<bool(const Choice&)> is_wanted);
  // Unimplemented: the engine does not compile, or wants more scratch.
  absl::StatusOr<const cudnn::ExecutionPlan*> PlanOf(size_t engine);
  absl::Status RunPlan(cudaStream_t stream, const cudnn::ExecutionPlan& plan,
                       const Operands& operands) const;

  const std::shared_ptr<const cudnn::GpuHandle> handle_;
  const cudnn::ConvolutionPass pass_;
  const cudnn::ConvolutionExtents extents_;
  std::optional<cudnn::Graph> graph_;
  std::vector<cudnn::Engine> engines_;
  std::map<size_t, absl::StatusOr<cudnn::ExecutionPlan>> plans_;  // of the engines tried
  size_t taken_ = 0;
};

// The plans of one device, each made once. Thread-safe.
class CudnnConvolutions {
 public:
  // Both arguments outlive this object.
  CudnnConvolutions(cudnn::SharedGpuHandle& handle, Tuner& tuner)
      : handle_(handle), tuner_(tuner) {}

  // Returns a plan that lives as long as this object. Unimplemented, in one line: there is no
  // usable cuDNN, or it has no engine that may be used.
  absl::StatusOr<const ConvolutionPlan*> Plan(cudnn::ConvolutionPass pass,
                                              const cudnn::ConvolutionExtents& extents,
                                              Precision precision);

 private:
  cudnn::SharedGpuHandle& handle_;
  Tuner& tuner_;
  base::Mutex mutex_;
  std::map<std::vector<int64_t>, std::unique_ptr<ConvolutionPlan>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_CUDNN_H_
