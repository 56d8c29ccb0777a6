#include "partition/exact/closed_sets.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace stagecoach::partition {

// Lists sets by their number of layers, and those with the same number by their layers in ascending
// order. Each arises once: from the set without its last layer.
class ClosedSetLister {
 public:
  ClosedSetLister(absl::Span<const Edge> edges, absl::Span<const int64_t> output_bytes,
                  const ClosedSets::Limits& limits, ClosedSets& sets)
      : output_bytes_(output_bytes),
        limits_(limits),
        sets_(sets),
        producers_(output_bytes.size()),
        consumers_(output_bytes.size()) {
    for (const Edge& edge : edges) {
      producers_[static_cast<size_t>(edge.consumer)].push_back(edge.producer);
      consumers_[static_cast<size_t>(edge.producer)].push_back(edge.consumer);
    }
    for (auto* const lists : {&producers_, &consumers_}) {
      for (std::vector<int>& list : *lists) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
      }
    }
  }

  void Run() {
    Open empty;
    for (size_t layer = 0; layer < producers_.size(); ++layer) {
      if (producers_[layer].empty()) empty.ready.push_back(static_cast<int>(layer));
    }
    AddSet(0, -1, 0, std::move(empty));
    for (int set = 0; set < sets_.size(); ++set) {
      const Open open = std::move(open_.front());
      open_.pop_front();
      sets_.first_arc_.push_back(sets_.arcs_.size());
      for (const int layer : open.ready) {
        if (layer < sets_.added(set)) {
          // It arose from an earlier set: this one with `layer` in place of its last layer.
          AddArc(Next(Next(sets_.parent(set), layer), sets_.added(set)), layer);
        } else if (layer - open.first_missing <= limits_.reach) {
          AddArc(sets_.size(), layer);
          Extend(set, open, layer);
        } else {
          sets_.is_complete_ = false;
        }
        const bool is_too_large =
            sets_.size() > limits_.sets || sets_.arcs_.size() > static_cast<size_t>(limits_.arcs);
        if (!is_too_large) continue;
        sets_.is_too_large_ = true;
        sets_.is_complete_ = false;
        return;
      }
    }
    sets_.first_arc_.push_back(sets_.arcs_.size());
  }

 private:
  using Layers = absl::InlinedVector<int, 12>;

  // The state of a set, needed until those that include it have been listed.
  struct Open {
    int first_missing = 0;
    Layers beyond = {};  // its layers after that; ascending
    Layers ready = {};   // the layers that could be added; ascending

    bool Has(int layer) const {
      return layer < first_missing || std::binary_search(beyond.begin(), beyond.end(), layer);
    }
  };

  void AddSet(int parent, int added, int64_t cut_bytes, Open open) {
    sets_.parents_.push_back(parent);
    sets_.added_.push_back(added);
    sets_.cut_bytes_.push_back(cut_bytes);
    open_.push_back(std::move(open));
  }

  // `layer` comes after all layers of the set.
  void Extend(int set, const Open& open, int layer) {
    Open more = {.first_missing = open.first_missing, .beyond = open.beyond};
    more.beyond.push_back(layer);
    if (layer == open.first_missing) {  // the set has all layers before it
      ++more.first_missing;
      more.beyond.clear();
    }
    std::remove_copy(open.ready.begin(), open.ready.end(), std::back_inserter(more.ready), layer);
    const auto has = [&](int other) { return more.Has(other); };
    const auto has_all = [&](const std::vector<int>& layers) {
      return std::all_of(layers.begin(), layers.end(), has);
    };
    const auto index = static_cast<size_t>(layer);
    for (const int consumer : consumers_[index]) {
      if (has_all(producers_[static_cast<size_t>(consumer)])) more.ready.push_back(consumer);
    }
    std::sort(more.ready.begin(), more.ready.end());
    int64_t cut_bytes = sets_.cut_bytes(set);
    if (!consumers_[index].empty()) cut_bytes += output_bytes_[index];
    for (const int producer : producers_[index]) {
      const auto read = static_cast<size_t>(producer);
      if (has_all(consumers_[read])) cut_bytes -= output_bytes_[read];
    }
    AddSet(set, layer, cut_bytes, std::move(more));
  }

  void AddArc(int next, int layer) {
    sets_.arcs_.push_back(next);
    arc_layers_.push_back(layer);
  }

  // Returns the existing set with that layer added: its arcs come before those of the current set.
  int Next(int set, int layer) const {
    size_t arc = sets_.first_arc_[static_cast<size_t>(set)];
    while (arc_layers_[arc] != layer) ++arc;
    return sets_.arcs_[arc];
  }

  const absl::Span<const int64_t> output_bytes_;
  const ClosedSets::Limits limits_;
  ClosedSets& sets_;
  std::vector<std::vector<int>> producers_, consumers_;  // index: layer; ascending
  std::deque<Open> open_;                                // sets not visited yet
  std::vector<int> arc_layers_;                          // layers that were added; index: arc
};

ClosedSets::ClosedSets(absl::Span<const Edge> edges, absl::Span<const int64_t> output_bytes,
                       const Limits& limits) {
  ClosedSetLister(edges, output_bytes, limits, *this).Run();
}

}  // namespace stagecoach::partition
