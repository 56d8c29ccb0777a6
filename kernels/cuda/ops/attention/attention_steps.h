#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_STEPS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_STEPS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/tuning/measure.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/ops/attention.h"

// What an attention operation runs, and the ways in which it can.
namespace stagecoach::kernels {

// The operands of a call.
struct AttentionOperands {
  AttentionArguments arguments;  // without row sums
  float* row_sums = nullptr;     // (B, H, T), not computed yet
  std::byte* cudnn_scratch = nullptr;

  AttentionArguments WithRowSums() const {
    AttentionArguments with = arguments;
    with.row_sums = row_sums;
    return with;
  }
};

// One of several ways to compute the same result, each with its own order, so that their bits
// differ.
struct AttentionCandidate {
  Choice choice;
  std::function<absl::Status(cudaStream_t stream, const AttentionOperands& operands)> launch;
  // Returns true if the next run compiles or loads nothing; null: no run ever does.
  std::function<bool()> has_run;
};

// A part of a call that is launched as a unit.
struct AttentionStep {
  const char* name;
  std::vector<AttentionCandidate> candidates;  // in an order of preference
  // Returns the areas that it writes; it writes nothing else.
  std::function<std::vector<Area>(const AttentionArguments& a)> results;
  std::string library;         // the library of some candidates, or ""
  bool may_be_others = false;  // a machine with the library may have more candidates, even if there
                               // is only one here
  size_t taken = 0;

  absl::Status Launch(cudaStream_t stream, const AttentionOperands& operands) const {
    return base::Annotate(candidates[taken].launch(stream, operands), name);
  }
};

// Our kernels: forward, and the parts of backward after the row sums.
struct OurAttentionSteps {
  AttentionStep forward;
  std::vector<AttentionStep> backward;
};

// Returns the tiled kernels that the GPU has what they need for.
OurAttentionSteps TiledAttentionSteps(const AttentionShape& shape, const Tuner& tuner);
OurAttentionSteps PlainAttentionSteps(ElementType type);

// Returns the areas of dq, dk and dv.
std::vector<Area> AttentionBackwardResults(const AttentionArguments& a);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_STEPS_H_
