#ifndef STAGECOACH_ENGINE_NN_LAYER_HARNESS_H_
#define STAGECOACH_ENGINE_NN_LAYER_HARNESS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/nn/check_layer.h"
#include "engine/nn/last_use_checker.h"
#include "engine/nn/layer.h"
#include "kernels/device.h"

namespace stagecoach::engine {

inline constexpr int kNotANumber = 0xFF;  // every byte of a float32 that is NaN

// Memory between guards, which reveal a write outside of it; without bytes it has no address.
class GuardedArea {
 public:
  static absl::StatusOr<GuardedArea> Create(kernels::Device& device, std::string name,
                                            int64_t bytes);

  const std::string& name() const { return name_; }
  std::byte* data() const;
  absl::Span<float> floats() const;
  std::string Bytes() const;
  bool HasIntactGuards() const;

  void Fill(int byte);

 private:
  GuardedArea(std::string name, kernels::Buffer buffer, int64_t bytes);

  std::string name_;
  kernels::Buffer buffer_;
  int64_t bytes_;
};

// A layer by itself on a CPU device, with two micro-batches of random values. Each call fails if
// the layer does, throws, writes outside of an area or changes an operand that it may only read.
// For CheckLayer.
class LayerHarness {
 public:
  using Bytes = std::string;

  struct MicroBatch {
    SampleNumbers numbers;
    std::vector<GuardedArea> areas;  // in the order of the names below
    GuardedArea& x() { return areas[0]; }
    GuardedArea& y() { return areas[1]; }
    GuardedArea& dx() { return areas[2]; }
    GuardedArea& dy() { return areas[3]; }
    GuardedArea& stash() { return areas[4]; }
    GuardedArea& weight_stash() { return areas[5]; }
    GuardedArea& gradient_stash() { return areas[6]; }
  };

  // Everything that the three operations compute.
  struct Results {
    Bytes y, dx;
    std::vector<Bytes> gradients;
    bool operator==(const Results&) const = default;
  };

  LayerHarness(const LayerFactory& factory, const LayerCheck& check, kernels::Device& device);

  // The functions below are called on the device's stream, Prepare first, and the harness is
  // destroyed there.
  absl::Status Prepare();

  absl::Status Forward(size_t number);
  absl::Status BackwardInput(size_t number, bool wants_dx = true);
  absl::Status BackwardWeight(size_t number, bool accumulate = false);
  absl::Status Backward(size_t number);  // both in one

  // Runs all three operations. An operand that is dead, in B and W or in W alone, is NaN there,
  // since the layer declares that it is no longer read.
  absl::StatusOr<Results> Compute(size_t number, std::optional<Operand> dead_in_both = {},
                                  std::optional<Operand> dead_in_weight = {});
  Results ResultsOf(size_t number, Bytes y);

  // Draws uniform values in [low, high).
  void Draw(float low, float high, absl::Span<float> values);
  // Sets what the workspace holds before each call from now on.
  void FillWorkspaceWith(int byte) { workspace_fill_ = byte; }

  const LayerSpec& spec() const { return spec_; }
  MicroBatch& micro_batch(size_t number) { return micro_batches_[number]; }
  std::vector<GuardedArea>& parameters() { return parameters_; }
  std::vector<GuardedArea>& gradients() { return gradients_; }

 private:
  absl::Status AddMicroBatch(int64_t number);
  LayerArgs ArgsFor(MicroBatch& own);
  LayerArgs BackwardArgs(MicroBatch& own);
  // Makes the call, and checks that nothing but `written` and the workspace has changed.
  absl::Status Perform(const char* operation, MicroBatch& own, const LayerArgs& args,
                       absl::Status (Layer::*call)(const LayerArgs&),
                       std::vector<const GuardedArea*> written);
  void ForEachArea(MicroBatch& own, const std::function<void(const GuardedArea&)>& function) const;
  Shape XShape() const { return check_.input.Batched(check_.rows); }
  Shape YShape() const { return spec_.output.Batched(check_.rows); }

  const LayerFactory& factory_;
  const LayerCheck& check_;
  kernels::Device& device_;
  std::unique_ptr<Layer> layer_;
  LayerSpec spec_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<GuardedArea> parameters_, gradients_;
  std::vector<Tensor> parameter_tensors_, gradient_tensors_;
  std::optional<GuardedArea> workspace_;
  int workspace_fill_ = 0;
  uint64_t streams_ = 1;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYER_HARNESS_H_
