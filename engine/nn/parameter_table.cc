#include "engine/nn/parameter_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

// Returns the stream of parameter `index` of a layer. It depends on these two numbers alone, so
// that a parameter's initial values do not depend on the layers behind its own.
//
// No two streams are equal. The first 1024 of a layer are below 2^42. The others have bit 62 set,
// and below it 31 bits for each of the two numbers. Bit 63 is never set: streams of data have it
// (engine/data/random_streams.h).
uint64_t RandomStreamOf(int layer, size_t index) {
  constexpr uint64_t kPerLayer = 1024;
  const auto number = static_cast<uint64_t>(layer);
  if (index < kPerLayer) return number * kPerLayer + index;
  STAGECOACH_CHECK(index < uint64_t{1} << 31, "a layer has too many parameters");
  return uint64_t{1} << 62 | number << 31 | index;
}

}  // namespace

std::string NameOf(const ParameterRef& parameter) {
  return absl::StrCat("layer ", parameter.layer, ": ", parameter.name);
}

void ParameterTable::Add(int layer, absl::Span<const ParameterSpec> specs) {
  STAGECOACH_CHECK(layer >= 0 && (parameters_.empty() || parameters_.back().layer < layer),
                   absl::StrCat("layer ", layer, " is added out of order"));
  for (size_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = specs[i];
    parameters_.push_back({.id = ParameterId(size()),
                           .layer = layer,
                           .name = NameOf({layer, spec.name}),
                           .shape = spec.shape,
                           .init = spec.init,
                           .random_stream = RandomStreamOf(layer, i),
                           .decays = spec.decays,
                           .update = spec.update,
                           .is_adapter = spec.is_adapter,
                           .is_trained_base = spec.is_trained_base,
                           .quantized = spec.quantized,
                           .blocks = spec.blocks,
                           .first_piece = pieces()});
  }
}

absl::Status ParameterTable::Tie(const ParameterTie& tie) {
  ASSIGN_OR_RETURN(const ParameterId first_id, Find(NameOf(tie.first)));
  ASSIGN_OR_RETURN(const ParameterId second_id, Find(NameOf(tie.second)));
  ModelParameter& first = parameters_[static_cast<size_t>(first_id.value())];
  ModelParameter& second = parameters_[static_cast<size_t>(second_id.value())];
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot tie \"", first.name, "\" and \"", second.name, "\": ", why...));
  };
  if (first.layer >= second.layer) return refuse("the first must be of an earlier layer");
  if (first.is_tied() || second.is_tied()) return refuse("one of them is tied already");
  if (first.quantized.has_value() || second.quantized.has_value()) {
    return refuse("one of them is quantized");
  }
  if (first.blocks != second.blocks) return refuse("they are not cut into the same blocks");
  if (first.update != second.update) return refuse("they are not updated alike");
  if (first.decays != second.decays) return refuse("weight decay applies to one of them alone");
  if (first.shape != second.shape) {
    return refuse("they have the shapes ", first.shape.ToString(), " and ",
                  second.shape.ToString());
  }
  first.tied_to = second.id;
  second.tied_to = first.id;
  second.init = first.init;
  second.random_stream = first.random_stream;
  return absl::OkStatus();
}

int ParameterTable::ties() const {
  return static_cast<int>(
      std::count_if(parameters_.begin(), parameters_.end(),
                    [](const ModelParameter& p) { return p.is_copy() && p.has_tied_gradient(); }));
}

absl::Span<const ModelParameter> ParameterTable::OfLayers(int first, int last) const {
  const auto begin = std::partition_point(parameters_.begin(), parameters_.end(),
                                          [=](const ModelParameter& p) { return p.layer < first; });
  const auto end = std::partition_point(begin, parameters_.end(),
                                        [=](const ModelParameter& p) { return p.layer <= last; });
  return all().subspan(static_cast<size_t>(begin - parameters_.begin()),
                       static_cast<size_t>(end - begin));
}

absl::StatusOr<ParameterId> ParameterTable::Find(const std::string& name) const {
  for (const ModelParameter& parameter : parameters_) {
    if (parameter.name == name) return parameter.id;
  }
  const auto append_name = [](std::string* out, const ModelParameter& parameter) {
    out->append(parameter.name);
  };
  return absl::NotFoundError(absl::StrCat("no parameter \"", name, "\"; there are ",
                                          absl::StrJoin(parameters_, ", ", append_name)));
}

void FillInitial(const ModelParameter& parameter, uint64_t seed, absl::Span<float> values) {
  const Init& init = parameter.init;
  const base::RandomStream random(seed, parameter.random_stream);
  switch (init.kind) {
    case Init::Kind::kConstant:
      std::fill(values.begin(), values.end(), init.a);
      return;
    case Init::Kind::kNormal:
      random.FillNormal(init.a, init.b, values);
      return;
    case Init::Kind::kUniform:
      random.FillUniform(init.a, init.b, values);
      return;
  }
}

}  // namespace stagecoach::engine
