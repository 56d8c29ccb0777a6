#ifndef STAGECOACH_ENGINE_MODEL_LAYER_H_
#define STAGECOACH_ENGINE_MODEL_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/call_context.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "partition/analytic.h"
#include "partition/layer_cost.h"
#include "schedule/memory.h"

namespace stagecoach::engine {

using kernels::Shape;
using kernels::Tensor;
using schedule::LastUse;

// How a parameter starts. Values come from a counter-based generator keyed by (seed, layer,
// parameter), so they do not depend on where the layer runs (FillInitial in parameter_table.h).
struct Init {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  float a = 0.0F;  // the constant; the mean; the lower end
  float b = 0.0F;  // -; the standard deviation; the upper end

  static Init Constant(float value) { return {Kind::kConstant, value, 0.0F}; }
  static Init Normal(float mean, float stddev) { return {Kind::kNormal, mean, stddev}; }
  static Init Uniform(float low, float high) { return {Kind::kUniform, low, high}; }

  friend bool operator==(const Init&, const Init&) = default;
};

struct ParameterSpec {
  std::string name;  // within the layer: "weight"
  Shape shape;
  Init init;
  bool decays = true;  // whether weight decay applies; customary for matrices only
};

// All that the engine must know of a layer before it runs.
struct LayerSpec {
  std::string description;  // "linear 784 -> 2304, gelu"
  Shape output;             // of one sample
  bool takes_ids = false;   // x has ids, such as those of tokens, rather than numbers
  std::vector<ParameterSpec> parameters;

  // What the layer wants of memory besides its parameters, its input and its output; bytes are per
  // micro-batch. It sets its areas (stash_bytes, weight_stash_bytes, gradient_stash_bytes,
  // workspace_bytes) and the last operations that read x, y and dy (the earlier, the less memory a
  // stage needs). The rest follows from parameters and shapes: PrepareLayer sets it.
  partition::LayerMemory memory;

  // For the analytic cost model; the optimizer's part is added by the engine.
  partition::Work forward, backward_input, backward_weight;
};

// Where and how large a layer will run.
struct LayerContext {
  kernels::Device& device;
  int64_t rows;              // of a micro-batch
  Shape input;               // of one sample
  int optimizer_states = 0;  // float32 tensors of its size that the optimizer keeps of a parameter
  int64_t vocabulary = 0;    // x is data and has ids, each in [0, vocabulary); 0: it has numbers
  // For what a layer draws itself (CallContext::seed): every layer of a model, one that is inside
  // another included, has a stream of its own, wherever the model is cut (StreamOfLayer).
  uint64_t random_stream = 0;

  bool is_fed_ids() const { return vocabulary > 0; }
};

// The stream of layer `index` of a model, or of those inside the layer whose stream is `outer`; 0
// for the model itself. Below 2^62 and at least 2^61, which sets them apart from those of
// parameters and of data. That two of a model with n layers are equal has a chance of n^2 / 2^62.
uint64_t StreamOfLayer(uint64_t outer, int index);

// What one call of a layer works on. x, y, dx, dy have a leading dimension `rows`; they and the
// parameters are of the device's activation type, gradients are float32. Only x is int32 where it
// has ids, each within the vocabulary of the context, and there is then no dx. Tensors that the
// layer declared it does not read in an operation may be empty there. All are in the device's
// memory, which only operations of the device (kernels/ops) can touch unless memory_is_host().
struct LayerArgs {
  kernels::Stream& stream;
  CallContext call;
  Tensor x, y;
  Tensor dx, dy;  // backward only; dx is empty if it is not needed, and never the memory of dy
  absl::Span<const Tensor> parameters;  // in the order of LayerSpec
  absl::Span<const Tensor> gradients;   // BackwardWeight only
  bool accumulate = false;  // BackwardWeight: add to the gradients rather than overwrite them
  std::byte* stash = nullptr;
  std::byte* weight_stash = nullptr;
  std::byte* gradient_stash = nullptr;
  std::byte* workspace = nullptr;
};

// Maps one activation to the next. To define a layer, derive from this: everything that a layer
// keeps between calls is in memory that it declares, so that micro-batches can be in flight at once
// and every byte is planned.
//
// The engine calls Prepare once, then the other functions in the order of the schedule, always from
// one thread (a job of the device's stream). Every call must depend on its arguments alone, and
// give the same bits for the same ones; a device may record what a call issues and issue it again.
// Forward must be repeatable: it leaves x as it is, and whatever y and the areas held before, also
// what backward calls left there, they then hold the same again.
class Layer {
 public:
  virtual ~Layer() = default;

  // Checks the input's shape (InvalidArgument says what was expected) and creates what the calls
  // need.
  virtual absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) = 0;

  // y from x.
  virtual absl::Status Forward(const LayerArgs& args) = 0;
  // dx from dy.
  virtual absl::Status BackwardInput(const LayerArgs& args) = 0;
  // The gradients of the parameters. Called after BackwardInput of the same micro-batch. A layer
  // without parameters need not override it.
  virtual absl::Status BackwardWeight(const LayerArgs& args);
};

// The type of x on a device.
kernels::DType InputType(const kernels::Device& device, bool is_fed_ids);

// Calls layer.Prepare and completes LayerSpec::memory: parameters (each float32 tensor rounded up
// by AlignTensor), the optimizer's state and what layers see in place of float32 parameters, the
// input and the output as bundles (bundle.h), and the layer's areas rounded up by AlignTensor.
// InvalidArgument: a layer that takes ids is fed numbers, or the other way round.
absl::StatusOr<LayerSpec> PrepareLayer(Layer& layer, const LayerContext& context);

// Makes a fresh, unprepared layer; called once for each place where the layer is to run.
using LayerFactory = std::function<std::unique_ptr<Layer>()>;

// A factory of a user's layer: LayerOf<MyLayer>(arguments of its constructor...).
template <typename T, typename... Args>
LayerFactory LayerOf(Args... args) {
  return [=] { return std::make_unique<T>(args...); };
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYER_H_
