#include "kernels/cuda/ops/images/convolution_cudnn.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/measure.h"

namespace stagecoach::kernels {
namespace {

using cudnn::ConvolutionExtents;
using cudnn::ConvolutionPass;
using cudnn::ConvolutionScratchBytes;

// How many engines are measured, among those that cuDNN expects to be the fastest. Compiling one
// takes up to two seconds.
constexpr size_t kMostCandidates = 8;

const char* NameOf(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kForward:
      return "forward";
    case ConvolutionPass::kBackwardInput:
      return "dx";
    case ConvolutionPass::kBackwardWeight:
      return "dw";
  }
  return "unknown";
}

std::string WorkOf(ConvolutionPass pass, const ConvolutionExtents& e, Precision precision) {
  std::string work =
      absl::StrCat("convolution ", NameOf(pass), " ", PrecisionName(precision), " ", e.samples, "x",
                   e.inputs, "x", e.height, "x", e.width, " to ", e.outputs, ", kernel ", e.kernel,
                   ", stride ", e.stride, ", padding ", e.padding, ", groups ", e.groups);
  if (e.has_bias) absl::StrAppend(&work, ", bias");
  return work;
}

}  // namespace

// ---- The bench for engines.

class ConvolutionPlan::Bench {
 public:
  explicit Bench(const ConvolutionPlan& plan) : plan_(plan) {}

  absl::Status Prepare() {
    if (bench_.has_value()) return absl::OkStatus();
    Layout sizes(nullptr);
    Arrange(sizes);
    ASSIGN_OR_RETURN(TuningBench bench,
                     TuningBench::Create(plan_.handle_->gpu(), sizes.used_bytes()));
    Layout layout(bench.memory());
    operands_ = Arrange(layout);
    const ConvolutionExtents& e = plan_.extents_;
    const auto fill = [&](const void* to, int64_t elements, uint32_t seed) {
      return bench.FillUniform(const_cast<void*>(to), elements, type(), seed);
    };
    if (plan_.pass_ != ConvolutionPass::kBackwardInput) {
      RETURN_IF_ERROR(fill(operands_.images, e.image_elements(), 1));
    }
    if (plan_.pass_ != ConvolutionPass::kBackwardWeight) {
      RETURN_IF_ERROR(fill(operands_.weights, e.weight_elements(), 2));
    }
    if (plan_.pass_ != ConvolutionPass::kForward) {
      RETURN_IF_ERROR(fill(operands_.outputs, e.output_elements(), 3));
    }
    bench_ = std::move(bench);
    return absl::OkStatus();
  }

  absl::Status RunOnce(const cudnn::ExecutionPlan& plan) {
    RETURN_IF_ERROR(Prepare());
    RETURN_IF_ERROR(plan_.RunPlan(bench_->stream(), plan, operands_));
    return CudaStatus(cudaStreamSynchronize(bench_->stream()), "cudaStreamSynchronize");
  }

  absl::StatusOr<size_t> FindFastest(const std::vector<const cudnn::ExecutionPlan*>& plans) {
    RETURN_IF_ERROR(Prepare());
    ASSIGN_OR_RETURN(
        const Fastest fastest,
        bench_->FindFastest({.candidates = plans.size(),
                             .run =
                                 [&](cudaStream_t stream, size_t candidate) {
                                   return plan_.RunPlan(stream, *plans[candidate], operands_);
                                 },
                             .follow = {},
                             .results = {Result()},
                             .workspace = {.begin = operands_.scratch,
                                           .row_bytes = ConvolutionScratchBytes(plan_.extents_)}}));
    return fastest.candidate;
  }

 private:
  ElementType type() const {
    return plan_.extents_.type == cudnn::DataType::kFloat ? ElementType::kFloat32
                                                          : ElementType::kBfloat16;
  }
  int64_t element_bytes() const {
    return SizeOf(type() == ElementType::kFloat32 ? DType::kFloat32 : DType::kBfloat16);
  }
  int64_t weight_bytes() const {
    const bool are_sums = plan_.pass_ == ConvolutionPass::kBackwardWeight;
    return plan_.extents_.weight_elements() *
           (are_sums ? SizeOf(DType::kFloat32) : element_bytes());
  }

  Operands Arrange(Layout& layout) const {
    const ConvolutionExtents& e = plan_.extents_;
    Operands operands;
    operands.images = layout.Take(e.image_elements() * element_bytes());
    operands.weights = layout.Take(weight_bytes());
    operands.outputs = layout.Take(e.output_elements() * element_bytes());
    operands.bias = layout.Take(e.outputs * element_bytes());
    operands.scratch = layout.Take(ConvolutionScratchBytes(e));
    return operands;
  }

  Area Result() const {
    const ConvolutionExtents& e = plan_.extents_;
    switch (plan_.pass_) {
      case ConvolutionPass::kForward:
        return {.begin = const_cast<void*>(operands_.outputs),
                .row_bytes = e.output_elements() * element_bytes(),
                .type = type()};
      case ConvolutionPass::kBackwardInput:
        return {.begin = const_cast<void*>(operands_.images),
                .row_bytes = e.image_elements() * element_bytes(),
                .type = type()};
      case ConvolutionPass::kBackwardWeight:
        break;
    }
    return {.begin = const_cast<void*>(operands_.weights), .row_bytes = weight_bytes()};
  }

  const ConvolutionPlan& plan_;
  std::optional<TuningBench> bench_;
  Operands operands_;
};

// ---- Plans.

absl::StatusOr<std::unique_ptr<ConvolutionPlan>> ConvolutionPlan::Create(
    std::shared_ptr<const cudnn::GpuHandle> handle, ConvolutionPass pass,
    const ConvolutionExtents& extents, Precision precision, Tuner& tuner) {
  const GpuScope scope(handle->gpu());
  RETURN_IF_ERROR(scope.status());
  std::unique_ptr<ConvolutionPlan> plan(new ConvolutionPlan(std::move(handle), pass, extents));
  if (tuner.is_for_planning()) return plan;
  RETURN_IF_ERROR(base::Annotate(plan->Choose(precision, tuner), WorkOf(pass, extents, precision)));
  return plan;
}

// The plans are destroyed on the GPU on which they were loaded.
ConvolutionPlan::~ConvolutionPlan() {
  const GpuScope scope(handle_->gpu());
  plans_.clear();
  engines_.clear();
  graph_.reset();
}

absl::Status ConvolutionPlan::Choose(Precision precision, Tuner& tuner) {
  ASSIGN_OR_RETURN(graph_, cudnn::ConvolutionGraph(*handle_, pass_, extents_));
  ASSIGN_OR_RETURN(engines_, ConvolutionEngines(*handle_, *graph_, precision));
  const std::string work = WorkOf(pass_, extents_, precision);
  Bench bench(*this);
  if (!tuner.measures()) {
    RETURN_IF_ERROR(UseFirst(bench, [](const Choice&) { return true; }));
  } else {
    const auto use = [&](const Choice& choice) {
      return UseFirst(bench, [&](const Choice& each) { return each == choice; });
    };
    const std::string key = absl::StrCat("cuDNN ", cudnn::VersionText(handle_->api()), ", ", work);
    ASSIGN_OR_RETURN(const Choice choice,
                     tuner.Choose(
                         key, [&](const Choice& kept) { return use(kept).ok(); },
                         [&] { return Measure(bench); }));
    RETURN_IF_ERROR(use(choice));
  }
  tuner.Tell(absl::StrCat(work, ", on ", tuner.model()), ToString(engines_[taken_].choice));
  std::erase_if(plans_, [&](const auto& tried) { return tried.first != taken_; });
  return absl::OkStatus();
}

absl::StatusOr<Choice> ConvolutionPlan::Measure(Bench& bench) {
  std::vector<const cudnn::ExecutionPlan*> plans;
  std::vector<size_t> engines;
  absl::Status refusal = absl::UnimplementedError("cuDNN has no engine that may be used");
  for (size_t engine = 0; engine < engines_.size() && plans.size() < kMostCandidates; ++engine) {
    const absl::StatusOr<const cudnn::ExecutionPlan*> plan = PlanOf(engine);
    if (!plan.ok()) {
      refusal = absl::UnimplementedError(plan.status().message());
      continue;
    }
    plans.push_back(*plan);
    engines.push_back(engine);
  }
  if (plans.empty()) return refusal;
  ASSIGN_OR_RETURN(const size_t fastest, bench.FindFastest(plans));
  return engines_[engines[fastest]].choice;
}

absl::Status ConvolutionPlan::UseFirst(Bench& bench,
                                       absl::FunctionRef<bool(const Choice&)> is_wanted) {
  absl::Status refusal = absl::UnimplementedError("cuDNN has no engine that may be used");
  for (size_t engine = 0; engine < engines_.size(); ++engine) {
    if (!is_wanted(engines_[engine].choice)) continue;
    const absl::StatusOr<const cudnn::ExecutionPlan*> plan = PlanOf(engine);
    absl::Status status = plan.status();
    // Without memory to try it in, it is used untried.
    if (status.ok()) status = bench.RunOnce(**plan);
    if (status.ok() || absl::IsResourceExhausted(status)) {
      taken_ = engine;
      return absl::OkStatus();
    }
    refusal = absl::UnimplementedError(status.message());
  }
  return refusal;
}

absl::StatusOr<const cudnn::ExecutionPlan*> ConvolutionPlan::PlanOf(size_t engine) {
  auto plan = plans_.find(engine);
  if (plan == plans_.end()) {
    plan = plans_.emplace(engine, cudnn::ExecutionPlan::Create(handle_, engines_[engine])).first;
  }
  RETURN_IF_ERROR(plan->second.status());
  const int64_t needed = plan->second->workspace_bytes();
  const int64_t most = ConvolutionScratchBytes(extents_);
  if (needed <= most) return &*plan->second;
  return absl::UnimplementedError(
      absl::StrCat("a plan of cuDNN needs ", needed, " bytes of scratch, it may have ", most));
}

absl::Status ConvolutionPlan::Run(cudaStream_t stream, const Operands& operands) const {
  return RunPlan(stream, *plans_.at(taken_), operands);
}

absl::Status ConvolutionPlan::RunPlan(cudaStream_t stream, const cudnn::ExecutionPlan& plan,
                                      const Operands& operands) const {
  // This is read during the execution of a plan.
  constexpr float kOne = 1.0F;
  std::array<cudnn::ExecutionPlan::Operand, 4> passed = {
      {{cudnn::kImages, operands.images},
       {cudnn::kConvolutionWeights, operands.weights},
       {cudnn::kConvolutionOutputs, operands.outputs}}};
  size_t count = 3;
  if (extents_.has_bias) passed[count++] = {cudnn::kConvolutionBias, operands.bias};
  if (cudnn::TakesUnit(pass_, extents_)) passed[count++] = {cudnn::kUnit, &kOne};
  return base::Annotate(
      plan.Execute(stream, absl::MakeConstSpan(passed).subspan(0, count), operands.scratch),
      absl::StrCat("convolution ", NameOf(pass_)));
}

absl::StatusOr<const ConvolutionPlan*> CudnnConvolutions::Plan(ConvolutionPass pass,
                                                               const ConvolutionExtents& extents,
                                                               Precision precision) {
  base::MutexLock lock(mutex_);
  const auto handle = handle_.Get();
  if (!handle.ok()) {
    // Only this layer is unavailable, like others that the backend does not have: the rest may
    // still be used.
    return absl::UnimplementedError(
        absl::StrCat("a convolution has no CUDA kernel without cuDNN 9.19 or a later 9: ",
                     handle.status().message(),
                     "; install it where the system looks for libraries (LD_LIBRARY_PATH)"));
  }
  std::vector<int64_t> key = extents.AsKey();
  key.insert(key.end(), {static_cast<int64_t>(pass), static_cast<int64_t>(precision)});
  auto known = plans_.find(key);
  if (known == plans_.end()) {
    ASSIGN_OR_RETURN(std::unique_ptr<ConvolutionPlan> plan,
                     ConvolutionPlan::Create(*handle, pass, extents, precision, tuner_));
    known = plans_.emplace(std::move(key), std::move(plan)).first;
  }
  return known->second.get();
}

}  // namespace stagecoach::kernels
