#ifndef STAGECOACH_TESTS_ENGINE_NN_CHAIN_ON_DEVICE_H_
#define STAGECOACH_TESTS_ENGINE_NN_CHAIN_ON_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/nn/layer.h"
#include "engine/nn/sequential.h"
#include "tests/testing/device_fixture.h"

namespace stagecoach::engine {

struct Network {
  std::string name;
  Shape input;
  std::vector<LayerFactory> layers;
  // Added to the biases, with alternating signs. A ReLU has no derivative at 0: this keeps finite
  // differences away from there.
  float bias_offset = 0.0F;
  // If not 0, x holds ids in [0, ids).
  int32_t ids = 0;
  // The elements of x are so far from 0, and from one another, that no kink of a ReLU or a maximum
  // is near.
  bool spreads_x = false;
  std::vector<Skip> skips = {};
};

// A chain of layers with its memory on a device, for gradient tests. Its variables are x, unless
// that holds ids, and all parameters that are not moving averages; their values and their gradients
// are concatenated into vectors. Averages are NaN: training does not read them.
//
// Calls are those of training; micro-batches are numbered in order.
//
// The memory is as hard on the layers as the engine may be: all areas start as NaN and lie between
// guard bytes, an area of no bytes has no address, the workspace is NaN before each call, what no
// operation may read any more is not passed to it, and a layer's parameters become NaN as soon as
// the chain says that nothing reads them any more.
class ChainOnDevice {
 public:
  static constexpr int64_t kRows = 3;

  // Aborts if the layers do not fit each other. `recomputed` is as in Sequential::LayOut.
  ChainOnDevice(const Network& network, bool splits_backward,
                absl::Span<const int> recomputed = {});
  ~ChainOnDevice();
  ChainOnDevice(const ChainOnDevice&) = delete;
  ChainOnDevice& operator=(const ChainOnDevice&) = delete;

  // Returns values of all variables, small enough to keep every intermediate result near 1.
  std::vector<double> RandomVariables() const;
  void SetVariables(const std::vector<double>& variables);
  // Sets x of one micro-batch from the front of `variables`. Ids stay: each micro-batch has others.
  void SetInput(size_t micro_batch, const std::vector<double>& variables);

  // There is one micro-batch, number 0; this adds another and returns its number.
  size_t AddMicroBatch();

  void Forward(size_t micro_batch = 0);
  // Runs both backward operations, in one call or two.
  struct BackwardOptions {
    bool accumulate = false;
    bool want_dx = true;
  };
  void Backward(size_t micro_batch, const BackwardOptions& options);
  void Backward() { Backward(0, {}); }

  // Returns the sum of dy y of micro-batch 0, as a function of the variables.
  double WeightedSum(const std::vector<double>& variables);
  std::vector<double> Input() const { return testing::TestDevice::Values(at(0).x); }
  // Returns the gradient of the sum, after Backward.
  std::vector<double> Gradients() const;
  // Returns the gradients of all parameters; for averages, what is to be averaged.
  std::vector<double> ParameterGradients() const;
  void SetParameterGradients(const std::vector<double>& values);

  double SumOfMagnitudesOfDy() const;
  const Sequential& chain() const { return *chain_; }

 private:
  // An area of one micro-batch, with guard bytes on both sides: TestDevice checks those after it.
  class Area {
   public:
    Area(testing::TestDevice& device, int64_t bytes);
    std::byte* data() const;
    void Poison();
    bool front_is_intact() const;

   private:
    int64_t bytes_;
    std::byte* front_;
  };
  struct InFlight {
    InFlight(testing::TestDevice& device, const Sequential& chain, int64_t number, const Tensor& x);
    SampleNumbers numbers;
    Tensor x, y, dx, dy;
    Area stash, weight_stash, gradient_stash;
  };

  InFlight& at(size_t micro_batch) { return in_flight_[micro_batch]; }
  const InFlight& at(size_t micro_batch) const { return in_flight_[micro_batch]; }
  CallContext CallOf(size_t micro_batch) const;
  LayerArgs BackwardArgs(kernels::Stream& stream, size_t micro_batch, LastUse op,
                         const BackwardOptions& options);
  absl::Status PoisonParameters(int layer);
  // Returns how many of the variables are x.
  int64_t input_variables() const { return ids_ > 0 ? 0 : at(0).x.elements(); }

  const bool splits_backward_;
  const float bias_offset_;
  const int32_t ids_;
  const bool spreads_x_;
  testing::TestDevice device_;
  std::optional<Sequential> chain_;
  std::vector<Tensor> parameters_, gradients_;
  std::vector<ParameterSpec> specs_;
  std::optional<Area> workspace_;
  std::deque<InFlight> in_flight_;
};

// Returns the gradients of the sum by finite differences of the chain itself, in float32.
std::vector<double> NumericalGradients(ChainOnDevice& chain, const std::vector<double>& variables);
// Returns how far these may be from the exact ones.
double NumericalBound(const ChainOnDevice& chain);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_NN_CHAIN_ON_DEVICE_H_
