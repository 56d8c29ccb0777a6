#ifndef STAGECOACH_ENGINE_NN_PARAMETER_TABLE_H_
#define STAGECOACH_ENGINE_NN_PARAMETER_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/strong_id.h"
#include "engine/nn/layer.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// A parameter's position in its model, counted over all layers in the order in which they declare
// parameters. Sums and hashes over parameters follow this order.
using ParameterId = base::StrongId<struct ParameterIdTag>;

// One parameter of a model, wherever it is trained. Its stage follows from the plan:
// Plan::stage_of(layer).
//
// Two tied parameters (engine/models/model.h) are copies of each other, each with its layer.
// Whatever acts once per value (norms, hashes, checkpoints) takes the first.
struct ModelParameter {
  ParameterId id;
  int layer = 0;
  std::string name;  // "layer 3: weight"
  Shape shape;
  kernels::DType type = kernels::DType::kFloat32;  // of the values that are trained
  Init init;
  uint64_t random_stream = 0;  // of its initial values; unique to the parameter
  bool decays = true;          // whether weight decay applies
  UpdateRule update;
  ParameterId tied_to = {};  // the other parameter of the tie; -1: none
  bool is_adapter = false;   // as in ParameterSpec, like the next one
  bool is_trained_base = false;
  std::optional<kernels::QuantizedMatrix> quantized = {};  // as in ParameterSpec
  std::optional<BlockOrder> blocks = {};                   // likewise
  // The number of its first piece, counted over all parameters: each of its blocks is a piece, or
  // else the whole parameter. Norms and hashes are computed piece by piece, so that they are the
  // same whichever devices have the blocks.
  int first_piece = 0;

  int pieces() const { return blocks.has_value() && blocks->is_cut() ? blocks->blocks : 1; }
  bool is_tied() const { return tied_to.valid(); }
  bool is_copy() const { return is_tied() && tied_to < id; }
  // Whether the gradients of both sides of a tie are added up.
  bool has_tied_gradient() const { return is_tied() && !update.is_frozen(); }
  // Returns the parameter under which its values are counted.
  ParameterId original() const { return is_copy() ? tied_to : id; }

  friend bool operator==(const ModelParameter&, const ModelParameter&) = default;
};

// Names a parameter by its layer and its name there: {3, "weight"}.
struct ParameterRef {
  int layer = 0;
  std::string name;

  friend bool operator==(const ParameterRef&, const ParameterRef&) = default;
};

// Returns its name in the model: "layer 3: weight".
std::string NameOf(const ParameterRef& parameter);

// Two parameters of different layers that act as one: they start alike, and both change by the sum
// of their gradients. The first one's layer comes first.
struct ParameterTie {
  ParameterRef first, second;

  friend bool operator==(const ParameterTie&, const ParameterTie&) = default;
};

// All parameters of a model, by id. The table depends on the model alone: not on the plan, the
// micro-batch size or the devices. Regular value type; thread-safe while it does not change.
class ParameterTable {
 public:
  // Adds the parameters of the next layer that has any. Pre-condition: `layer` is above all added
  // before.
  void Add(int layer, absl::Span<const ParameterSpec> specs);
  // Ties two parameters that were added: the second starts as the first does. InvalidArgument:
  // there is no such parameter, their shapes differ, one is tied already or quantized, only one of
  // them decays, or they are of one layer or in the wrong order.
  absl::Status Tie(const ParameterTie& tie);

  int size() const { return static_cast<int>(parameters_.size()); }
  // Returns the number of pieces of all parameters.
  int pieces() const {
    return parameters_.empty() ? 0 : parameters_.back().first_piece + parameters_.back().pieces();
  }
  // Pre-condition: in [0, size()).
  const ModelParameter& operator[](ParameterId id) const {
    return parameters_[static_cast<size_t>(id.value())];
  }
  absl::Span<const ModelParameter> all() const { return parameters_; }
  // Returns the parameters of layers `first` to `last`, inclusive. Their ids are consecutive.
  absl::Span<const ModelParameter> OfLayers(int first, int last) const;
  // Returns the first parameter of that name. NotFound lists the names.
  absl::StatusOr<ParameterId> Find(const std::string& name) const;
  // Returns the number of tied pairs that are trained.
  int ties() const;

  friend bool operator==(const ParameterTable&, const ParameterTable&) = default;

 private:
  std::vector<ModelParameter> parameters_;
};

// Fills in the initial values of a parameter: a function of the seed, the parameter's random stream
// and its initializer. Pre-condition: as many values as its shape has elements.
void FillInitial(const ModelParameter& parameter, uint64_t seed, absl::Span<float> values);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARAMETER_TABLE_H_
