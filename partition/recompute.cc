#include "partition/recompute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "partition/layer_cost.h"

namespace stagecoach::partition {
namespace {

// Layers of which it does not matter which ones do F again.
struct Kind {
  int stage = 0;
  std::vector<int> layers;  // ascending
  double forward_ns = 0;
  int64_t saved_bytes = 0;  // by one of them, per micro-batch
};

struct Option {
  double again_ns = 0;
  int size = 0;
  std::vector<int> counts;  // of each kind
};

bool CostTheSame(const LayerCost& a, const LayerCost& b) {
  LayerCost renamed = b;
  renamed.name = a.name;
  return a == renamed;
}

std::vector<Kind> KindsOf(absl::Span<const LayerCost> layers, absl::Span<const StageRange> ranges) {
  std::vector<Kind> kinds;
  int able = 0;
  for (const StageRange& range : ranges) {
    for (int index = range.first; index <= range.last; ++index) {
      able += layers[static_cast<size_t>(index)].recompute_stash_bytes.has_value();
    }
  }
  const bool one_by_one = able <= kMaxRecomputedOneByOne;
  for (const StageRange& range : ranges) {
    for (int index = range.first; index <= range.last; ++index) {
      const LayerCost& layer = layers[static_cast<size_t>(index)];
      if (!layer.recompute_stash_bytes.has_value()) continue;
      const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
        return kind.stage == range.stage &&
               CostTheSame(layers[static_cast<size_t>(kind.layers.front())], layer);
      });
      if (!one_by_one && same != kinds.end()) {
        same->layers.push_back(index);
        continue;
      }
      kinds.push_back({.stage = range.stage,
                       .layers = {index},
                       .forward_ns = layer.forward_ns,
                       .saved_bytes = layer.memory.stash_bytes + layer.memory.weight_stash_bytes -
                                      *layer.recompute_stash_bytes});
    }
  }
  return kinds;
}

std::vector<int> LayersOf(const std::vector<Kind>& kinds, const std::vector<int>& counts) {
  std::vector<int> chosen;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const std::vector<int>& layers = kinds[kind].layers;
    chosen.insert(chosen.end(), layers.end() - counts[kind], layers.end());
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

int64_t NumOptions(const std::vector<Kind>& kinds) {
  int64_t options = 1;
  for (const Kind& kind : kinds) {
    options *= static_cast<int64_t>(kind.layers.size()) + 1;
    if (options > kMaxChoices) break;
  }
  return options;
}

std::vector<Option> AllOptions(const std::vector<Kind>& kinds) {
  std::vector<Option> options = {{.counts = std::vector<int>(kinds.size(), 0)}};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const size_t before = options.size();
    for (size_t count = 1; count <= kinds[kind].layers.size(); ++count) {
      for (size_t i = 0; i < before; ++i) {
        Option more = options[i];
        more.counts[kind] = static_cast<int>(count);
        more.size += static_cast<int>(count);
        more.again_ns += static_cast<double>(count) * kinds[kind].forward_ns;
        options.push_back(std::move(more));
      }
    }
  }
  std::stable_sort(options.begin(), options.end(), [](const Option& a, const Option& b) {
    return a.again_ns != b.again_ns ? a.again_ns < b.again_ns : a.size < b.size;
  });
  return options;
}

FitOfRange BestOption(const std::vector<Kind>& kinds,
                      absl::FunctionRef<bool(absl::Span<const int>)> fits) {
  for (const Option& option : AllOptions(kinds)) {
    std::vector<int> chosen = LayersOf(kinds, option.counts);
    if (fits(chosen)) return {true, option.again_ns, std::move(chosen), true};
  }
  return {};
}

FitOfRange ByBytesForTime(std::vector<Kind> kinds,
                          absl::FunctionRef<bool(absl::Span<const int>)> fits) {
  std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
    return static_cast<double>(a.saved_bytes) * b.forward_ns >
           static_cast<double>(b.saved_bytes) * a.forward_ns;
  });
  std::vector<int> counts(kinds.size(), 0);
  const auto judge = [&] { return fits(LayersOf(kinds, counts)); };
  bool is_enough = false;
  for (size_t kind = 0; kind < kinds.size() && !is_enough; ++kind) {
    while (!is_enough && counts[kind] < static_cast<int>(kinds[kind].layers.size())) {
      ++counts[kind];
      is_enough = judge();
    }
  }
  if (!is_enough) return {};
  for (size_t kind = kinds.size(); kind-- > 0;) {
    while (counts[kind] > 0) {
      --counts[kind];
      if (judge()) continue;
      ++counts[kind];
      break;
    }
  }
  FitOfRange found{.fits = true, .again_ns = 0.0, .recomputed = LayersOf(kinds, counts)};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    found.again_ns += counts[kind] * kinds[kind].forward_ns;
  }
  return found;
}

}  // namespace

FitOfRange LeastRecomputation(absl::Span<const LayerCost> layers,
                              absl::Span<const StageRange> ranges,
                              absl::FunctionRef<bool(absl::Span<const int>)> fits) {
  FitOfRange found;
  found.fits = fits({});
  if (found.fits) return found;
  const std::vector<Kind> kinds = KindsOf(layers, ranges);
  if (kinds.empty()) return found;
  found = NumOptions(kinds) <= kMaxChoices ? BestOption(kinds, fits) : ByBytesForTime(kinds, fits);
  const bool is_one_by_one = kinds.size() <= static_cast<size_t>(kMaxRecomputedOneByOne) &&
                             std::all_of(kinds.begin(), kinds.end(),
                                         [](const Kind& kind) { return kind.layers.size() == 1; });
  found.is_exact = is_one_by_one && ranges.size() == 1;
  return found;
}

}  // namespace stagecoach::partition
