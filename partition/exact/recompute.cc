#include "partition/exact/recompute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {
namespace {

// Layers that are interchangeable when choosing which ones repeat F.
struct Kind {
  int stage = 0;
  std::vector<int> layers;  // ascending
  double again_ns = 0;      // for one of them
  int64_t saved_bytes = 0;  // by one of them (SavedBytes)
};

struct Option {
  double again_ns = 0;
  int size = 0;
  int code = 0;  // the counts of the kinds, as digits: see CountsOf
  int64_t saved_bytes = 0;
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
                       .again_ns = layer.again_ns(),
                       .saved_bytes = SavedBytes(layer)});
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

// Returns the options by time, but only those that save enough.
std::vector<Option> AllOptions(const std::vector<Kind>& kinds, int64_t least_saved_bytes) {
  std::vector<Option> options = {Option()};
  int unit = 1;
  for (const Kind& kind : kinds) {
    const size_t before = options.size();
    const auto most = static_cast<int>(kind.layers.size());
    for (int count = 1; count <= most; ++count) {
      for (size_t i = 0; i < before; ++i) {
        Option more = options[i];
        more.again_ns += count * kind.again_ns;
        more.size += count;
        more.code += count * unit;
        more.saved_bytes += count * kind.saved_bytes;
        options.push_back(more);
      }
    }
    unit *= most + 1;
  }
  std::erase_if(options, [least_saved_bytes](const Option& option) {
    return option.saved_bytes < least_saved_bytes;
  });
  std::stable_sort(options.begin(), options.end(), [](const Option& a, const Option& b) {
    return a.again_ns != b.again_ns ? a.again_ns < b.again_ns : a.size < b.size;
  });
  return options;
}

std::vector<int> CountsOf(const std::vector<Kind>& kinds, int code) {
  std::vector<int> counts;
  for (const Kind& kind : kinds) {
    const auto digits = static_cast<int>(kind.layers.size()) + 1;
    counts.push_back(code % digits);
    code /= digits;
  }
  return counts;
}

FitOfRange BestOption(const std::vector<Kind>& kinds, int64_t least_saved_bytes,
                      absl::FunctionRef<bool(absl::Span<const int>)> fits) {
  for (const Option& option : AllOptions(kinds, least_saved_bytes)) {
    std::vector<int> chosen = LayersOf(kinds, CountsOf(kinds, option.code));
    if (fits(chosen)) return {true, option.again_ns, std::move(chosen), true};
  }
  return {};
}

FitOfRange ByBytesForTime(std::vector<Kind> kinds, int64_t least_saved_bytes,
                          absl::FunctionRef<bool(absl::Span<const int>)> fits) {
  std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
    return static_cast<double>(a.saved_bytes) * b.again_ns >
           static_cast<double>(b.saved_bytes) * a.again_ns;
  });
  std::vector<int> counts(kinds.size(), 0);
  int64_t saved_bytes = 0;
  const auto add = [&](size_t kind, int more) {
    counts[kind] += more;
    saved_bytes += more * kinds[kind].saved_bytes;
  };
  const auto judge = [&] {
    return saved_bytes >= least_saved_bytes && fits(LayersOf(kinds, counts));
  };
  bool is_enough = false;
  for (size_t kind = 0; kind < kinds.size() && !is_enough; ++kind) {
    while (!is_enough && counts[kind] < static_cast<int>(kinds[kind].layers.size())) {
      add(kind, 1);
      is_enough = judge();
    }
  }
  if (!is_enough) return {};
  for (size_t kind = kinds.size(); kind-- > 0;) {
    while (counts[kind] > 0) {
      add(kind, -1);
      if (judge()) continue;
      add(kind, 1);
      break;
    }
  }
  FitOfRange found{.fits = true, .again_ns = 0.0, .recomputed = LayersOf(kinds, counts)};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    found.again_ns += counts[kind] * kinds[kind].again_ns;
  }
  return found;
}

}  // namespace

int64_t SavedBytes(const LayerCost& layer) {
  if (!layer.recompute_stash_bytes.has_value()) return 0;
  return layer.memory.stash_bytes + layer.memory.weight_stash_bytes - *layer.recompute_stash_bytes;
}

FitOfRange LeastRecomputation(absl::Span<const LayerCost> layers,
                              absl::Span<const StageRange> ranges, int64_t least_saved_bytes,
                              absl::FunctionRef<bool(absl::Span<const int>)> fits) {
  FitOfRange found;
  found.fits = fits({});
  if (found.fits) return found;
  int64_t most_saved_bytes = 0;
  for (const StageRange& range : ranges) {
    for (int index = range.first; index <= range.last; ++index) {
      most_saved_bytes += std::max(SavedBytes(layers[static_cast<size_t>(index)]), int64_t{0});
    }
  }
  if (most_saved_bytes < least_saved_bytes) return found;
  const std::vector<Kind> kinds = KindsOf(layers, ranges);
  if (kinds.empty()) return found;
  found = NumOptions(kinds) <= kMaxChoices ? BestOption(kinds, least_saved_bytes, fits)
                                           : ByBytesForTime(kinds, least_saved_bytes, fits);
  const bool is_one_by_one = kinds.size() <= static_cast<size_t>(kMaxRecomputedOneByOne) &&
                             std::all_of(kinds.begin(), kinds.end(),
                                         [](const Kind& kind) { return kind.layers.size() == 1; });
  found.is_exact = is_one_by_one && ranges.size() == 1;
  return found;
}

}  // namespace stagecoach::partition
