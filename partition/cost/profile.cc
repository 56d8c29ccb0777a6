#include "partition/cost/profile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "partition/cost/layer_fields.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {
namespace {

using schedule::kMaxSizeBytes;
using schedule::LastUse;

// Compares what must be the same for all sizes: what a layer is, not what it costs.
bool IsSameLayer(const LayerCost& a, const LayerCost& b) {
  return a.name == b.name && a.parameters == b.parameters &&
         a.recompute_stash_bytes.has_value() == b.recompute_stash_bytes.has_value() &&
         a.repeated.has_value() == b.repeated.has_value() &&
         a.memory.input_last_use == b.memory.input_last_use &&
         a.memory.output_last_use == b.memory.output_last_use &&
         a.memory.output_gradient_last_use == b.memory.output_gradient_last_use;
}

absl::Status CheckSize(const SizedLayers& size, const SizedLayers& first) {
  RETURN_IF_ERROR(CheckLayers(size.layers));
  if (size.layers.size() != first.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(size.layers.size(), " layers, expected the ",
                                                   first.layers.size(), " of the first size"));
  }
  for (size_t i = 0; i < size.layers.size(); ++i) {
    const LayerCost& layer = size.layers[i];
    const auto error = [&](absl::string_view message) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", i, " (", layer.name, "): ", message));
    };
    if (!IsSameLayer(layer, first.layers[i])) {
      return error(
          absl::StrCat("differs from layer ", i, " (", first.layers[i].name,
                       ") of the first size: names, parameters, last uses and the presence "
                       "of recompute_stash_bytes or repeated_forward_ms must agree"));
    }
    const double longest_ns = std::max(std::max(layer.forward_ns, layer.backward_input_ns),
                                       std::max(layer.backward_weight_ns, layer.step_ns));
    if (longest_ns > static_cast<double>(schedule::kMaxTimeNs)) {
      return error(
          absl::StrCat("a time of ", longest_ns, " ns, expected at most ", schedule::kMaxTimeNs));
    }
    if (layer.memory.output_gradient_last_use == LastUse::kForward) {
      return error("output_gradient_last_use is F, expected B or W");
    }
  }
  const auto check = [](const char* what, int64_t bytes) -> absl::Status {
    if (0 <= bytes && bytes <= kMaxSizeBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, " takes ", bytes, " bytes, expected 0 to ", kMaxSizeBytes));
  };
  RETURN_IF_ERROR(check("the feed", size.feed_bytes_per_micro_batch));
  RETURN_IF_ERROR(check("the feed of a stage", size.stage_bytes_per_micro_batch));
  RETURN_IF_ERROR(check("the loss", size.loss_workspace_bytes));
  return check("the loss", size.loss_bytes_per_micro_batch);
}

absl::Status CheckNames(const std::vector<LayerCost>& layers) {
  absl::flat_hash_set<absl::string_view> names;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", i, ": the name is empty"));
    }
    if (!names.insert(layers[i].name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", i, ": an earlier one is also called ", layers[i].name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEdges(absl::Span<const Edge> edges, int layers) {
  if (edges.size() > kMaxEdges) {
    return absl::InvalidArgumentError(
        absl::StrCat(edges.size(), " edges, expected at most ", kMaxEdges));
  }
  absl::flat_hash_set<std::pair<int, int>> seen;
  for (const Edge& edge : edges) {
    const std::string place = absl::StrCat("edge ", edge.producer, " -> ", edge.consumer, ": ");
    if (edge.producer < 0 || edge.producer >= edge.consumer || edge.consumer >= layers) {
      return absl::InvalidArgumentError(absl::StrCat(
          place, "expected one from a layer to a later one, layers being 0 to ", layers - 1));
    }
    if (!seen.emplace(edge.producer, edge.consumer).second) {
      return absl::InvalidArgumentError(absl::StrCat(place, "there twice"));
    }
  }
  return absl::OkStatus();
}

// Scales with the micro-batch size, rounds up, and stays within the limits.
int64_t Scaled(int64_t bytes, int64_t rows, int64_t from_rows) {
  const double scaled = std::ceil(static_cast<double>(bytes) * static_cast<double>(rows) /
                                  static_cast<double>(from_rows));
  return scaled < static_cast<double>(kMaxSizeBytes) ? static_cast<int64_t>(scaled) : kMaxSizeBytes;
}

void ScaleLayer(LayerCost& layer, int64_t rows, int64_t from_rows) {
  const double ratio = static_cast<double>(rows) / static_cast<double>(from_rows);
  for (const TimeField& field : kTimeFields) {
    if (field.scales) layer.*field.value *= ratio;
  }
  for (const BytesField& field : kBytesFields) {
    int64_t& bytes = layer.memory.*field.value;
    if (field.scales) bytes = Scaled(bytes, rows, from_rows);
  }
  for (PartExchange* const exchange :
       {&layer.forward_exchange, &layer.backward_exchange, &layer.input_gradient_exchange}) {
    exchange->bytes = Scaled(exchange->bytes, rows, from_rows);
  }
  if (layer.repeated.has_value()) {
    RepeatedPart part = *layer.repeated;
    part.forward_ns *= ratio;
    part.flops *= ratio;
    part.stash_bytes = Scaled(part.stash_bytes, rows, from_rows);
    part.weight_stash_bytes = Scaled(part.weight_stash_bytes, rows, from_rows);
    SetRepeated(part, layer);
  } else if (layer.recompute_stash_bytes.has_value()) {
    layer.recompute_stash_bytes = Scaled(*layer.recompute_stash_bytes, rows, from_rows);
  }
}

// Outputs of earlier layers that a layer in a chain gets, for itself or to pass on.
struct Given {
  int64_t bytes = 0;
  int64_t passing_bytes = 0;  // of those that only later layers read
  int until_input = 0;        // number of them that some reader keeps until B, until W
  int until_weight = 0;

  void Add(const Given& other, int times) {
    bytes += times * other.bytes;
    passing_bytes += times * other.passing_bytes;
    until_input += times * other.until_input;
    until_weight += times * other.until_weight;
  }
};

absl::Status CheckTies(const std::vector<Tie>& ties, int layers) {
  for (const Tie& tie : ties) {
    const bool is_ordered = 0 <= tie.layer && tie.layer < tie.other_layer;
    if (is_ordered && tie.other_layer < layers && tie.bytes > 0 &&
        tie.bytes <= schedule::kMaxSizeBytes) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("layers ", tie.layer, " and ", tie.other_layer,
                                                   " share ", tie.bytes, " bytes: expected two of ",
                                                   layers, " layers, in order, and some bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProfile(const Profile& profile) {
  if (profile.sizes.empty() || profile.sizes.size() > kMaxSizes) {
    return absl::InvalidArgumentError(
        absl::StrCat(profile.sizes.size(), " micro-batch sizes, expected 1 to ", kMaxSizes));
  }
  if (profile.num_layers() < 1 || profile.num_layers() > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat(profile.num_layers(), " layers, expected 1 to ", kMaxLayers));
  }
  const size_t costs = profile.sizes.size() * profile.sizes.front().layers.size();
  if (costs > kMaxLayerCosts) {
    return absl::InvalidArgumentError(
        absl::StrCat(costs, " layers times sizes, expected at most ", kMaxLayerCosts));
  }
  int64_t rows = 0;
  for (const SizedLayers& size : profile.sizes) {
    const std::string place = absl::StrCat("micro-batches of ", size.micro_batch_rows, " rows");
    if (size.micro_batch_rows <= rows || size.micro_batch_rows > kMaxMicroBatchRows) {
      return absl::InvalidArgumentError(absl::StrCat(
          place, ": expected sizes that ascend from at least 1 to at most ", kMaxMicroBatchRows));
    }
    rows = size.micro_batch_rows;
    RETURN_IF_ERROR(base::Annotate(CheckSize(size, profile.sizes.front()), place));
  }
  RETURN_IF_ERROR(CheckNames(profile.sizes.front().layers));
  RETURN_IF_ERROR(CheckTies(profile.ties, profile.num_layers()));
  for (const double ns : {profile.overheads.message_ns, profile.overheads.step_ns}) {
    if (ns >= 0 && ns <= static_cast<double>(schedule::kMaxTimeNs)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("an overhead of ", ns, " ns, expected 0 to ", schedule::kMaxTimeNs));
  }
  return CheckEdges(profile.edges, profile.num_layers());
}

SizedLayers LayersAt(const Profile& profile, int64_t rows) {
  STAGECOACH_CHECK(rows >= 1, absl::StrCat(rows, " rows"));
  const SizedLayers& nearest = *std::min_element(
      profile.sizes.begin(), profile.sizes.end(),
      [rows](const SizedLayers& a, const SizedLayers& b) {
        return std::abs(a.micro_batch_rows - rows) < std::abs(b.micro_batch_rows - rows);
      });
  SizedLayers at = nearest;
  const int64_t from_rows = nearest.micro_batch_rows;
  if (from_rows == rows) return at;
  at.micro_batch_rows = rows;
  for (LayerCost& layer : at.layers) ScaleLayer(layer, rows, from_rows);
  at.feed_bytes_per_micro_batch = Scaled(at.feed_bytes_per_micro_batch, rows, from_rows);
  at.loss_workspace_bytes = Scaled(at.loss_workspace_bytes, rows, from_rows);
  at.loss_bytes_per_micro_batch = Scaled(at.loss_bytes_per_micro_batch, rows, from_rows);
  at.stage_bytes_per_micro_batch = Scaled(at.stage_bytes_per_micro_batch, rows, from_rows);
  return at;
}

std::vector<LayerCost> InOrder(absl::Span<const LayerCost> layers, absl::Span<const Edge> edges,
                               absl::Span<const int> order) {
  const size_t count = layers.size();
  STAGECOACH_CHECK(order.size() == count, absl::StrCat(order.size(), " of ", count, " layers"));
  std::vector<LayerCost> chain;
  std::vector<size_t> place(count);
  for (const int layer : order) {
    place[static_cast<size_t>(layer)] = chain.size();
    chain.push_back(layers[static_cast<size_t>(layer)]);
  }
  if (edges.empty()) return chain;

  // The last reader of the output of the layer at each place, and the operation until which it is
  // kept.
  std::vector<size_t> last_reader(count, 0);
  std::vector<LastUse> last_use(count, LastUse::kForward);
  for (const Edge& edge : edges) {
    const size_t from = place[static_cast<size_t>(edge.producer)];
    const size_t to = place[static_cast<size_t>(edge.consumer)];
    STAGECOACH_CHECK(from < to, "the order is not topological");
    last_reader[from] = std::max(last_reader[from], to);
    last_use[from] = std::max(last_use[from], chain[to].memory.input_last_use);
  }
  // The input of each place minus that of the one before.
  std::vector<Given> change(count + 1);
  for (size_t i = 0; i < count; ++i) {
    if (last_reader[i] == 0) continue;
    const Given output = {.bytes = chain[i].memory.output_bytes,
                          .until_input = last_use[i] == LastUse::kBackwardInput ? 1 : 0,
                          .until_weight = last_use[i] == LastUse::kBackwardWeight ? 1 : 0};
    change[i + 1].Add(output, 1);
    change[last_reader[i] + 1].Add(output, -1);
    change[i + 1].passing_bytes += output.bytes;
    change[last_reader[i]].passing_bytes -= output.bytes;
    // It cannot be where activations come and go if other layers than the next read it.
    LastUse& use = chain[i].memory.output_last_use;
    if (last_reader[i] > i + 1) use = std::max(use, LastUse::kBackwardInput);
  }
  Given given;
  for (size_t i = 0; i < count; ++i) {
    given.Add(change[i], 1);
    LayerMemory& memory = chain[i].memory;
    if (i > 0) memory.input_bytes = std::min(given.bytes, kMaxSizeBytes);
    if (given.until_input > 0) {
      memory.input_last_use = std::max(memory.input_last_use, LastUse::kBackwardInput);
    }
    if (given.until_weight > 0) memory.input_last_use = LastUse::kBackwardWeight;
    memory.passing_bytes = std::min(given.passing_bytes, kMaxSizeBytes);
    memory.workspace_bytes =
        std::min(memory.workspace_bytes + AlignTensor(memory.passing_bytes), kMaxSizeBytes);
  }
  return chain;
}

}  // namespace stagecoach::partition
