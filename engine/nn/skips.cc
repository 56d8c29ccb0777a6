#include "engine/nn/skips.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

using kernels::Shape;

absl::StatusOr<Skips> Skips::Create(absl::Span<const Skip> skips, int layers, int64_t rows,
                                    kernels::DType type) {
  Skips made;
  made.rows_ = rows;
  made.type_ = type;
  for (const Skip& skip : skips) {
    const auto error = [&](absl::string_view message) {
      return absl::InvalidArgumentError(
          absl::StrCat("the skip from layer ", skip.from, " to layer ", skip.to, ": ", message));
    };
    if (skip.from < 0 || skip.to >= layers || skip.from >= skip.to) {
      return error(
          absl::StrCat("expected one from a layer to a later one, layers being 0 to ", layers - 1));
    }
    if (skip.from + 1 == skip.to) return error("is what that layer is given anyway");
    if (made.ReadBy(skip.to).has_value()) return error("that layer reads another skip already");
    made.skips_.push_back({.skip = skip});
  }
  absl::c_sort(made.skips_, [](const PlacedSkip& a, const PlacedSkip& b) {
    return std::tie(a.skip.from, a.skip.to) < std::tie(b.skip.from, b.skip.to);
  });
  return made;
}

void Skips::SetOutput(int layer, const Shape& sample) {
  for (size_t i = 0; i < skips_.size(); ++i) {
    PlacedSkip& own = skips_[i];
    if (own.skip.from != layer) continue;
    own.sample = sample;
    own.bytes = partition::AlignTensor(rows_ * sample.elements() * SizeOf(type_));
    // Takes the lowest offset that is free there: those that begin later make room for this one.
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t j = 0; j < i; ++j) {
      const PlacedSkip& other = skips_[j];
      if (other.passes(layer)) taken.emplace_back(other.offset, other.offset + other.bytes);
    }
    absl::c_sort(taken);
    own.offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - own.offset >= own.bytes) break;
      own.offset = std::max(own.offset, end);
    }
  }
}

std::optional<Shape> Skips::ReadBy(int layer) const {
  const auto found =
      absl::c_find_if(skips_, [layer](const PlacedSkip& own) { return own.skip.to == layer; });
  if (found == skips_.end()) return std::nullopt;
  return found->sample;
}

BoundaryTensors Skips::BundleAfter(int layer, const Shape& activation) const {
  std::vector<Shape> samples = {activation};
  for (const PlacedSkip& own : skips_) {
    if (own.passes(layer)) samples.push_back(own.sample);
  }
  return BoundaryTensors(std::move(samples), rows_, type_);
}

void Skips::AddTo(int layer, const Shape& input, const Shape& output,
                  partition::LayerMemory& memory) const {
  const auto passes = [](int boundary) {
    return [boundary](const PlacedSkip& own) { return own.passes(boundary); };
  };
  if (absl::c_any_of(skips_, passes(layer - 1))) {
    memory.input_bytes = BundleAfter(layer - 1, input).bytes();
  }
  if (absl::c_none_of(skips_, passes(layer))) return;
  memory.passing_bytes = BundleAfter(layer, output).bytes() - memory.output_bytes;
  for (const PlacedSkip& own : skips_) {
    if (!own.passes(layer)) continue;
    memory.skip_area_bytes = std::max(memory.skip_area_bytes, own.offset + own.bytes);
  }
}

Skips::Place Skips::InBundle(const PlacedSkip& skip, int layer, const Shape& activation) const {
  int index = 1;
  for (const PlacedSkip& other : skips_) {
    if (other.skip == skip.skip) break;
    if (other.passes(layer)) ++index;
  }
  return {.offset = BundleAfter(layer, activation).offset(index)};
}

std::vector<Skips::Relay> Skips::PassagesAt(const LayerOfStage& place) const {
  const int layer = place.layer;
  std::vector<Relay> passages;
  for (const PlacedSkip& own : skips_) {
    Relay passage{.sample = own.sample};
    const Place in_area{.is_in_area = true, .offset = own.offset};
    if (own.passes(layer - 1)) {
      passage.before = layer == place.first ? InBundle(own, layer - 1, place.input) : in_area;
    }
    if (own.passes(layer)) {
      passage.after = layer == place.last ? InBundle(own, layer, place.output) : in_area;
    }
    if (passage.before.has_value() || passage.after.has_value()) {
      passages.push_back(passage);
    }
  }
  return passages;
}

}  // namespace stagecoach::engine
