#include "tests/engine/outside/hinge_loss.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outside {
namespace {

using stagecoach::engine::Loss;
using stagecoach::engine::LossArgs;
using stagecoach::engine::LossContext;
using stagecoach::engine::LossSpec;
using stagecoach::engine::TargetSpec;

class HingeLoss final : public Loss {
 public:
  absl::StatusOr<LossSpec> Prepare(const LossContext& context) override {
    rows_ = context.rows;
    classes_ = context.output.elements();
    if (classes_ < 2 || context.device.activation_type() != stagecoach::kernels::DType::kFloat32) {
      return absl::InvalidArgumentError("hinge: takes at least two outputs, in float32");
    }
    return LossSpec{.description = "hinge",
                    .target = TargetSpec::ClassLabel(classes_),
                    .workspace_bytes = rows_ * static_cast<int64_t>(sizeof(HingeOfRow))};
  }

  absl::Status Compute(const LossArgs& args) override {
    float* const dy = args.dy.empty() ? nullptr : args.dy.f32();
    if (void* const stream = args.stream.native_handle()) {
      const cudaError_t error =
          LaunchHinge(stream, rows_, classes_, args.terms, args.y.f32(), args.targets.i32(), dy,
                      reinterpret_cast<HingeOfRow*>(args.workspace), args.result.f64());
      if (error == cudaSuccess) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("hinge: ", cudaGetErrorString(error)));
    }
    if (dy != nullptr) std::fill_n(dy, rows_ * classes_, 0.0F);
    double sum = 0.0, right = 0.0;
    for (int64_t row = 0; row < args.terms->valid_samples; ++row) {
      const float* const y = args.y.f32() + row * classes_;
      const int64_t label = args.targets.i32()[row];
      int64_t rival = label == 0 ? 1 : 0;
      for (int64_t c = 0; c < classes_; ++c) {
        if (c != label && y[c] > y[rival]) rival = c;
      }
      if (y[label] > y[rival]) ++right;
      const double loss = 1.0 + static_cast<double>(y[rival]) - static_cast<double>(y[label]);
      if (loss <= 0.0) continue;
      sum += loss;
      if (dy == nullptr) continue;
      dy[row * classes_ + rival] = args.terms->scale;
      dy[row * classes_ + label] = -args.terms->scale;
    }
    args.result.f64()[0] = sum;
    args.result.f64()[1] = right;
    return absl::OkStatus();
  }

 private:
  int64_t rows_ = 0, classes_ = 0;
};

}  // namespace

stagecoach::engine::LossFactory Hinge() { return stagecoach::engine::LossOf<HingeLoss>(); }

}  // namespace outside
