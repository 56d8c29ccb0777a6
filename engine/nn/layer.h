#ifndef STAGECOACH_ENGINE_NN_LAYER_H_
#define STAGECOACH_ENGINE_NN_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/nn/block_order.h"
#include "engine/nn/call_context.h"
#include "kernels/device.h"
#include "kernels/head_choice.h"
#include "kernels/loss_terms.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"
#include "partition/cost/analytic.h"
#include "partition/cost/layer_cost.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::engine {

class ParameterRules;

using kernels::Shape;
using kernels::Tensor;
using schedule::LastUse;

// Describes how a parameter is initialized. Values come from a counter-based generator keyed by
// (seed, layer, parameter), so they do not depend on where the layer runs (FillInitial in
// parameter_table.h).
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

// Describes what changes a parameter at the end of a step.
//
// A moving average follows a statistic of the samples, such as the means that a batch norm uses in
// evaluation. BackwardWeight writes the statistic of its micro-batch in place of a gradient, so
// that it is summed in the order of gradients, over micro-batches and replicas. Then
//   value = (1 - momentum) value + momentum (sum / number of micro-batches)
// The optimizer keeps no state for it, and neither clips nor decays it.
//
// A frozen parameter keeps its value. It has no gradient and no state, and its value exists once,
// in the type in which layers read it, or as a quantized matrix.
//
// For the optimizer, a parameter may have a learning rate and a weight decay of its own.
struct UpdateRule {
  enum class Kind : uint8_t { kOptimizer, kMovingAverage, kFrozen };
  Kind kind = Kind::kOptimizer;
  float momentum = 0.0F;                             // of a moving average
  float rate_factor = 1.0F;                          // of the step's learning rate
  std::optional<float> weight_decay = std::nullopt;  // unset: the optimizer's

  static UpdateRule MovingAverage(float momentum) { return {Kind::kMovingAverage, momentum}; }
  static UpdateRule Frozen() { return {Kind::kFrozen, 0.0F}; }
  bool is_average() const { return kind == Kind::kMovingAverage; }
  bool is_frozen() const { return kind == Kind::kFrozen; }

  friend bool operator==(const UpdateRule&, const UpdateRule&) = default;
};

struct ParameterSpec {
  std::string name;  // within the layer: "weight"
  Shape shape;
  Init init;
  bool decays = true;  // whether weight decay applies; customary for matrices only
  UpdateRule update = {};
  // These are trained also where LayerContext::is_frozen: an adapter, which is no part of the
  // original model, and a parameter of a layer that is (Layer::TrainWhole).
  bool is_adapter = false;
  bool is_trained_base = false;
  // How a matrix is stored that is frozen: the layer reads it as uint8.
  std::optional<kernels::QuantizedMatrix> quantized = std::nullopt;
  // Set in a layer that is cut into blocks; otherwise elements are in the order of the shape. A
  // quantized matrix has none.
  std::optional<BlockOrder> blocks = std::nullopt;
};

// Returns the elements that a part holds of what is stored of a parameter of that shape and order:
// an equal share of its blocks, or all.
int64_t HeldElements(const Shape& shape, const std::optional<BlockOrder>& blocks, TensorPart part);

// Returns the form in which a parameter is stored, without data: as values of `type`, or quantized.
Tensor StoredForm(const Shape& shape, const std::optional<kernels::QuantizedMatrix>& quantized,
                  kernels::DType type);

// All that the engine must know about a layer before it runs.
struct LayerSpec {
  std::string description;     // "linear 784 -> 2304, gelu"
  Shape output;                // of one sample
  bool takes_ids = false;      // x holds ids, such as those of tokens, rather than numbers
  bool has_attention = false;  // this layer, or one inside it, is attention
  bool takes_skip = false;     // also reads LayerArgs::skip; F cannot be recomputed within B then
  // The layer computes the model's loss itself (LayerContext::feeds_cross_entropy). Its output is
  // stored nowhere, and there is no dy.
  bool computes_loss = false;
  std::vector<ParameterSpec> parameters;
  // Above 1: the layer stands for as many layers of the list that it is in, and its parameters have
  // their names inside it: "2.weight" is one of the third.
  int stands_for = 1;

  // The memory that the layer needs besides its parameters, its input and its output; bytes are per
  // micro-batch. The layer sets its areas (stash_bytes, weight_stash_bytes, gradient_stash_bytes,
  // workspace_bytes, cache_bytes) and the last operations that read x, y and dy (the earlier, the
  // less memory a stage needs). The rest follows from parameters and shapes: PrepareLayer sets it.
  partition::LayerMemory memory;

  // Scratch for what Backward can run aside (LayerArgs::aside), while other layers use their own.
  int64_t aside_bytes = 0;

  // True if the layer has parameters, and all of them are frozen; set by PrepareLayer.
  bool is_frozen() const;

  // For the analytic cost model; the optimizer's part is added by the engine. `backward_shared` is
  // work that both backward operations do, and that Layer::Backward does once.
  partition::Work forward, backward_input, backward_weight, backward_shared;
  // What parts exchange by PartSums: as in partition::LayerCost.
  partition::PartExchange forward_exchange, backward_exchange, input_gradient_exchange,
      weight_exchange;
};

// Joins what the parts of a group of devices have computed: adds it up, or gathers it.
class PartSums {
 public:
  virtual ~PartSums() = default;

  // Adds up the tensors of all parts, in place: all get the sum, by the balanced binary tree over
  // the parts, each addition rounded to the tensors' type. All parts call it at the same places,
  // with tensors of the same shape. `scratch`: ScratchBytes.
  virtual absl::Status AddUp(kernels::Stream& stream, const Tensor& tensor, std::byte* scratch) = 0;
  static int64_t ScratchBytes(const Tensor& tensor) { return tensor.bytes(); }
  // Gathers a tensor that is divided into as many equal pieces as there are parts: part i has piece
  // i, and afterwards all parts have all pieces.
  virtual absl::Status Gather(kernels::Stream& stream, const Tensor& tensor) = 0;
  static partition::PartExchange OfGather(const Tensor& tensor, TensorPart part) {
    return {.bytes = tensor.bytes() / part.parts * (part.parts - 1), .rounds = 1};
  }
  // Each part sends 2 (parts - 1) / parts of the tensor's bytes, or a few more, since parts add up
  // whole multiples of kAlignment elements.
  static partition::PartExchange OfSum(const Tensor& tensor, TensorPart part);
  static constexpr int64_t kAlignment = 64;
};

// A part of a tensor's elements.
struct ElementRange {
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
};
// The halves of a range that two parts keep when they exchange the others; `round`: they differ in
// that bit of their indices.
struct RangeHalves {
  ElementRange own, other;
};
RangeHalves HalveFor(int part, int round, const ElementRange& range);

// Describes where a layer will run, and on what.
struct LayerContext {
  kernels::Device& device;
  int64_t rows;  // samples of a micro-batch
  Shape input;   // of one sample
  // Number of float32 tensors, each of the parameter's size, that the optimizer keeps for a
  // parameter that it updates.
  int optimizer_states = 0;
  int64_t vocabulary = 0;  // x is data and holds ids, each in [0, vocabulary); 0: it holds numbers
  // Shape of one sample of the earlier layer's output that the layer receives besides x
  // (Model::skips).
  std::optional<Shape> skip = std::nullopt;
  // True for the last layer of a model whose loss is SoftmaxCrossEntropy(): the layer may compute
  // that itself, whichever stage it is on.
  bool feeds_cross_entropy = false;
  // The order that the output must have if it is images, as for a model, whose results have their
  // channels first; nothing: any.
  std::optional<kernels::ImageOrder> output_order = std::nullopt;
  // Above 0: the model only predicts, sequences of up to this number of positions, each of which is
  // a sample of its own (ModelForGeneration in engine/generate/generator.h), and each call of
  // Forward has the next ones (CallContext::rows). A layer in which positions see each other keeps
  // what it needs of earlier ones in its cache, or refuses.
  int64_t cached_positions = 0;
  int64_t cached_sequences = 1;  // of each it has a cache
  // The rows of a micro-batch are the next positions of as many sequences, rather than consecutive
  // ones of a single sequence. The results of a row must then have the same bits however many
  // rows there are. On CPU devices alone.
  bool rows_are_sequences = false;
  // The layer's parameters are frozen, except for adapters (ParameterSpec::is_adapter);
  // PrepareLayer says so in the spec. Not so in a layer that is trained as a whole. BackwardWeight
  // and Backward of a layer without adapters are then not called, and it should keep nothing for
  // them.
  bool is_frozen = false;
  // A sample may consist of several documents, whose positions do not see each other
  // (LayerArgs::documents).
  bool has_documents = false;
  // For what a layer draws itself (CallContext::seed): every layer of a model, one that is inside
  // another included, has a stream of its own, wherever the model is cut (StreamOfLayer).
  uint64_t random_stream = 0;
  // Rules for parameters by their names in the model; null: none. PrepareLayer applies them.
  const ParameterRules* rules = nullptr;
  // Names of parameters begin with this, followed, for a layer that is inside another, by its
  // number in the list of layers there; -1: it is not.
  std::string parameter_prefix = {};
  int number_in_list = -1;
  // Which of the blocks of a layer that is cut are to be computed here (TensorBlocks), and what
  // adds up the results of all parts: null if only the costs of the layer are wanted, or there is
  // one part.
  TensorPart part = {};
  PartSums* part_sums = nullptr;

  bool is_fed_ids() const { return vocabulary > 0; }
  // Returns the bytes of one value of an activation, or of a parameter as layers read it.
  double value_bytes() const { return static_cast<double>(SizeOf(device.activation_type())); }
};

// Returns the stream of layer `index` of a model, or of those inside the layer whose stream is
// `outer`; 0 stands for the model itself. Streams are below 2^62 and at least 2^61, which sets them
// apart from those of parameters and of data. The chance that two layers of a model with n layers
// have equal streams is n^2 / 2^62.
uint64_t StreamOfLayer(uint64_t outer, int index);

// The loss of one micro-batch, for the layer that computes it; see LossArgs (loss.h).
struct LayerLoss {
  Tensor targets;
  const kernels::LossTerms* terms = nullptr;
  Tensor result;  // empty with LayerContext::cached_positions: the loss is not wanted
  // (n, output) in host memory: the layer's output for the first n rows; empty if not wanted.
  Tensor outputs;
  // If not null, only this is wanted, for the first row.
  const kernels::HeadChoice* choice = nullptr;
};

// The operands of one call of a layer. x, y, dx, dy have a leading dimension `rows`; they and the
// parameters are of the device's activation type, gradients and moving averages (UpdateRule) are
// float32, quantized matrices uint8. If x holds ids, it is int32, each id is within the vocabulary
// of the context, and there is no dx. Tensors that the layer declares not to read in an operation
// may be empty there. All are in the device's memory, which only operations of the device
// (kernels/ops) can touch unless memory_is_host().
struct LayerArgs {
  kernels::Stream& stream;
  CallContext call;
  Tensor x, y;
  Tensor dx, dy;  // backward only; dx is empty if it is not needed, and never the memory of dy
  // For a layer that takes a skip: what it receives besides x, in Forward only, and where its
  // gradient is to be written, in BackwardInput and Backward.
  Tensor skip, dskip;
  // (rows, T) int32, with LayerContext::has_documents alone: the first position of the document
  // that each of a sample's T positions is in. The same in all calls for a micro-batch.
  Tensor documents = {};
  absl::Span<const Tensor> parameters;  // in the order of LayerSpec
  absl::Span<const Tensor> gradients;   // BackwardWeight only; empty for frozen parameters
  bool accumulate = false;  // BackwardWeight: add to the gradients rather than overwrite them
  // For a layer that computes the loss: in BackwardInput, Backward, and Forward outside of
  // training. Null there as well if no result is wanted.
  const LayerLoss* loss = nullptr;
  std::byte* stash = nullptr;
  std::byte* weight_stash = nullptr;
  std::byte* gradient_stash = nullptr;
  std::byte* workspace = nullptr;
  // LayerSpec::aside_bytes, in Backward of a layer inside a residual one; otherwise null, and then
  // nothing may run aside. The residual layer waits for what does.
  std::byte* aside = nullptr;
  // LayerMemory::cache_bytes, which hold what the layer's last call left there: only with
  // LayerContext::cached_positions.
  std::byte* cache = nullptr;
};

// The order of images (kernels::ImageOrder) in which a layer takes x, if that has any. If x is in
// another, the layer receives a reordered copy, and its dx is reordered for the layer before.
enum class TakesImages : uint8_t {
  kChannelsFirst,
  kInAnyOrder,       // the order that LayerContext::input has
  kAsTheDeviceDoes,  // kernels::Device::image_order()
};

// Maps one activation to the next. To define a layer, derive from this class. Everything that a
// layer keeps between calls is in memory that it declares, so that several micro-batches can be in
// flight and every byte is planned.
//
// The engine calls Prepare once, then the other functions in the order of the schedule, always from
// one thread (a job of the device's stream). Every call must depend on its arguments alone, and
// produce the same bits for the same arguments; a device may record what a call issues and issue it
// again. An error that a call returns ends the run; so does an exception, which becomes an error.
//
// Forward must be repeatable: it leaves x unchanged, and y and the areas hold the same afterwards
// whatever they held before, including what backward calls left there.
class Layer {
 public:
  virtual ~Layer() = default;

  // Checks the input's shape (InvalidArgument says what was expected) and creates what the calls
  // need.
  virtual absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) = 0;

  // Called before Prepare. A layer whose samples are not images need not override it.
  virtual TakesImages takes_images() const { return TakesImages::kChannelsFirst; }

  // Computes y from x.
  virtual absl::Status Forward(const LayerArgs& args) = 0;
  // Computes dx from dy.
  virtual absl::Status BackwardInput(const LayerArgs& args) = 0;
  // Computes the gradients of the parameters. Called after BackwardInput of the same micro-batch. A
  // layer without parameters need not override it.
  virtual absl::Status BackwardWeight(const LayerArgs& args);
  // Computes both, for a layer that can do so together in less time, with the same bits.
  virtual absl::Status Backward(const LayerArgs& args);

  // Lets all parameters be trained even where LayerContext::is_frozen. Called before Prepare.
  void TrainWhole() { is_trained_whole_ = true; }
  bool is_trained_whole() const { return is_trained_whole_; }

 private:
  bool is_trained_whole_ = false;
};

// Returns the name in a list of layers of a parameter of the layer with that number: "3.weight".
std::string NameInList(int number, const LayerSpec& layer, const std::string& name);

// Returns the type of x on a device.
kernels::DType InputType(const kernels::Device& device, bool is_fed_ids);

// Makes a fresh, unprepared layer; called once for each place where the layer is to run.
using LayerFactory = std::function<std::unique_ptr<Layer>()>;

struct PreparedLayer {
  std::unique_ptr<Layer> layer;
  LayerSpec spec;
};

// Makes a layer and calls its Prepare. A layer that takes or returns images in another order than
// the context's is wrapped in one that reorders them, which has the rest of its spec. Completes
// LayerSpec::memory: parameters (each float32 tensor rounded up by AlignTensor), the optimizer's
// state and what layers see in place of float32 parameters, the input and the output as bundles
// (boundary_tensors.h), and the layer's areas rounded up by AlignTensor. Frozen parameters count
// among what is resident, in their StoredForm. A layer of which the context's rules freeze some
// parameters, but not all, is wrapped in a PartlyFrozenLayer. InvalidArgument: the factory returns
// no layer; a layer that takes ids is fed numbers, or one that takes no skip receives one, or vice
// versa; a quantized parameter is not frozen. Internal: the factory or Prepare throws.
absl::StatusOr<PreparedLayer> PrepareLayer(const LayerFactory& factory,
                                           const LayerContext& context);

// Bytes that a layer recomputed within B keeps from F until then, besides its input: none, since
// Forward is repeatable.
inline constexpr int64_t kRecomputeStashBytes = 0;

// Returns a factory of a user's layer: LayerOf<MyLayer>(arguments of its constructor...).
template <typename T, typename... Args>
LayerFactory LayerOf(Args... args) {
  return [=] { return std::make_unique<T>(args...); };
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYER_H_
