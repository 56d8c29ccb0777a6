#ifndef STAGECOACH_ENGINE_MODEL_PARAMETER_TABLE_H_
#define STAGECOACH_ENGINE_MODEL_PARAMETER_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/strong_id.h"
#include "engine/model/layer.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// A parameter's position in its model: counted over all layers, in the order that they declare
// them. What is summed or hashed over parameters goes in this order.
using ParameterId = base::StrongId<struct ParameterIdTag>;

// One parameter of a model, wherever it is trained. Which stage has it follows from the plan:
// Plan::stage_of(layer).
//
// Two that are tied (engine/model/model.h) are copies of each other, each with its layer. What acts
// once per value (norms, hashes, checkpoints) takes the first.
struct ModelParameter {
  ParameterId id;
  int layer = 0;
  std::string name;  // "layer 3: weight"
  Shape shape;
  kernels::DType type = kernels::DType::kFloat32;  // of the values that are trained
  Init init;
  uint64_t random_stream = 0;  // of its initial values; every parameter has another
  bool decays = true;          // whether weight decay applies
  UpdateRule update;
  ParameterId tied_to = {};  // the other one of a tie; none (-1)

  bool is_tied() const { return tied_to.valid(); }
  bool is_copy() const { return is_tied() && tied_to < id; }
  // Where its values are counted.
  ParameterId original() const { return is_copy() ? tied_to : id; }

  friend bool operator==(const ModelParameter&, const ModelParameter&) = default;
};

// A parameter by its layer and its name there: {3, "weight"}.
struct ParameterRef {
  int layer = 0;
  std::string name;

  friend bool operator==(const ParameterRef&, const ParameterRef&) = default;
};

// Two parameters of different layers that are one: they start alike, and both change by the sum of
// their gradients. The first one's layer comes first.
struct ParameterTie {
  ParameterRef first, second;

  friend bool operator==(const ParameterTie&, const ParameterTie&) = default;
};

// All parameters of a model, by id. It depends on the model alone: not on the plan, the size of a
// micro-batch or the devices. A value; thread-safe while it does not change.
class ParameterTable {
 public:
  // Adds those of the next layer that has any. Pre-condition: `layer` is above all added before.
  void Add(int layer, absl::Span<const ParameterSpec> specs);
  // Ties two that were added: the second starts as the first does. InvalidArgument: there is no
  // such parameter, they have different shapes, one is tied already or decays otherwise, or they
  // are of one layer or in the wrong order.
  absl::Status Tie(const ParameterTie& tie);

  int size() const { return static_cast<int>(parameters_.size()); }
  // Pre-condition: in [0, size()).
  const ModelParameter& operator[](ParameterId id) const {
    return parameters_[static_cast<size_t>(id.value())];
  }
  absl::Span<const ModelParameter> all() const { return parameters_; }
  // Those of layers `first` to `last`, both included. Their ids are consecutive.
  absl::Span<const ModelParameter> OfLayers(int first, int last) const;
  // The first of that name. NotFound lists the names.
  absl::StatusOr<ParameterId> Find(const std::string& name) const;
  // How many pairs are tied.
  int ties() const;

  friend bool operator==(const ParameterTable&, const ParameterTable&) = default;

 private:
  std::vector<ModelParameter> parameters_;
};

// The values that a parameter starts with: a function of the seed, the parameter's random stream
// and its initialiser. Pre-condition: as many values as its shape has elements.
void FillInitial(const ModelParameter& parameter, uint64_t seed, absl::Span<float> values);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_PARAMETER_TABLE_H_
