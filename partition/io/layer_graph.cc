#include "partition/io/layer_graph.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace stagecoach::partition {
namespace {

// Every layer that is not in the order waits for another such layer, so following these waits ends
// in a cycle.
int FindOnCycle(absl::Span<const Edge> edges, const std::vector<int>& unread) {
  std::vector<int> waits_for(unread.size(), -1);
  int layer = -1;
  for (const Edge& edge : edges) {
    if (unread[static_cast<size_t>(edge.producer)] == 0) continue;
    waits_for[static_cast<size_t>(edge.consumer)] = edge.producer;
    layer = edge.consumer;
  }
  for (size_t step = 0; step < unread.size(); ++step) layer = waits_for[static_cast<size_t>(layer)];
  return layer;
}

}  // namespace

TopologicalOrder SortLayers(int layers, absl::Span<const Edge> edges) {
  const size_t count = static_cast<size_t>(layers);
  std::vector<std::vector<int>> consumers(count);
  std::vector<int> unread(count, 0);  // outputs that a layer still waits for
  for (const Edge& edge : edges) {
    consumers[static_cast<size_t>(edge.producer)].push_back(edge.consumer);
    ++unread[static_cast<size_t>(edge.consumer)];
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int layer = 0; layer < layers; ++layer) {
    if (unread[static_cast<size_t>(layer)] == 0) ready.push(layer);
  }
  TopologicalOrder order;
  while (!ready.empty()) {
    const int layer = ready.top();
    ready.pop();
    order.layers.push_back(layer);
    for (const int consumer : consumers[static_cast<size_t>(layer)]) {
      if (--unread[static_cast<size_t>(consumer)] == 0) ready.push(consumer);
    }
  }
  if (order.layers.size() < count) order.on_cycle = FindOnCycle(edges, unread);
  return order;
}

void ReorderLayers(absl::Span<const int> order, Profile& profile) {
  std::vector<int> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    place[static_cast<size_t>(order[i])] = static_cast<int>(i);
  }
  for (SizedLayers& size : profile.sizes) {
    std::vector<LayerCost> layers;
    for (const int layer : order) {
      layers.push_back(std::move(size.layers[static_cast<size_t>(layer)]));
    }
    size.layers = std::move(layers);
  }
  for (Edge& edge : profile.edges) {
    edge = {.producer = place[static_cast<size_t>(edge.producer)],
            .consumer = place[static_cast<size_t>(edge.consumer)]};
  }
  std::sort(profile.edges.begin(), profile.edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.consumer, a.producer) < std::tie(b.consumer, b.producer);
  });
  bool is_chain = profile.edges.size() + 1 == order.size();
  for (size_t i = 0; i < profile.edges.size() && is_chain; ++i) {
    const int layer = static_cast<int>(i);
    is_chain = profile.edges[i] == Edge{.producer = layer, .consumer = layer + 1};
  }
  if (is_chain) profile.edges.clear();
}

}  // namespace stagecoach::partition
