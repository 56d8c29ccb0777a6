#include "partition/io/pipedream_profile.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/line.h"
#include "partition/io/imported_layer.h"
#include "partition/io/layer_graph.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

absl::Status ErrorAt(int line, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(line, ": ", message));
}

constexpr int64_t kMaxGraphBytes = int64_t{64} << 20;
constexpr size_t kMaxLineBytes = 1 << 16;
constexpr absl::string_view kSeparator = " -- ";

struct Node {
  ImportedLayer layer;
  bool is_input = false;
  int line = 0;
};

// An edge between node numbers.
struct Arrow {
  int64_t from = 0;
  int64_t to = 0;
  int line = 0;
};

struct Graph {
  std::map<int64_t, Node> nodes;  // by number
  std::vector<Arrow> arrows;
};

// Returns as much of a text as an error should show.
std::string Quoted(absl::string_view text) {
  constexpr size_t kShown = 60;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "...\"" : "\"");
}

absl::StatusOr<int64_t> ParseNode(absl::string_view text) {
  absl::string_view digits = text;
  int64_t number = 0;
  if (absl::ConsumePrefix(&digits, "node") && absl::SimpleAtoi(digits, &number) && number >= 0) {
    return number;
  }
  return absl::InvalidArgumentError(absl::StrCat(Quoted(text), ": expected \"node\" and a number"));
}

// Parses a size, or a list of sizes: "[4.0; 8.0]".
absl::StatusOr<int64_t> ParseSizes(absl::string_view text) {
  if (!absl::StartsWith(text, "[")) return ParseByteCount(text);
  absl::string_view list = text.substr(1);
  if (!absl::ConsumeSuffix(&list, "]")) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(text), ": expected a list to end in ]"));
  }
  int64_t sum = 0;
  for (const absl::string_view size : absl::StrSplit(list, "; ", absl::SkipEmpty())) {
    ASSIGN_OR_RETURN(const int64_t bytes, ParseByteCount(size));
    sum += bytes;
    if (sum > schedule::kMaxSizeBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the list sums to ", sum, ", expected at most ", schedule::kMaxSizeBytes));
    }
  }
  return sum;
}

// Parses "forward_compute_time=1.0, ..."
absl::Status ParseCosts(absl::string_view text, ImportedLayer& layer) {
  constexpr absl::string_view kKeys[] = {"forward_compute_time", "backward_compute_time",
                                         "activation_size", "parameter_size"};
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ", ");
  for (size_t i = 0; i < std::size(kKeys); ++i) {
    absl::string_view value = i < parts.size() ? parts[i] : "";
    if (!absl::ConsumePrefix(&value, kKeys[i]) || !absl::ConsumePrefix(&value, "=")) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(value), ": expected \"", kKeys[i], "=\" and a number"));
    }
    if (i < 2) {
      const absl::StatusOr<double> ns = ParseMilliseconds(value);
      RETURN_IF_ERROR(base::Annotate(ns.status(), kKeys[i]));
      (i == 0 ? layer.forward_ns : layer.backward_ns) = *ns;
    } else {
      const absl::StatusOr<int64_t> bytes = ParseSizes(value);
      RETURN_IF_ERROR(base::Annotate(bytes.status(), kKeys[i]));
      (i == 2 ? layer.output_bytes : layer.parameter_bytes) = *bytes;
    }
  }
  if (parts.size() == std::size(kKeys)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(parts[std::size(kKeys)]), ": expected nothing after parameter_size"));
}

absl::Status ParseNodeLine(absl::string_view text, int line, Graph& graph) {
  std::vector<absl::string_view> parts = absl::StrSplit(text, kSeparator);
  if (absl::StartsWith(parts.back(), "stage_id=")) parts.pop_back();
  if (parts.size() < 3) {
    return ErrorAt(line, absl::StrCat(Quoted(text),
                                      ": expected \"node1 -- name -- forward_compute_time=...\" or "
                                      "a tab and \"node1 -- node2\""));
  }
  const absl::StatusOr<int64_t> number = ParseNode(parts.front());
  if (!number.ok()) return ErrorAt(line, number.status().message());
  Node node = {.line = line};
  // A name may contain the separator.
  const size_t start = parts.front().size() + kSeparator.size();
  const size_t end = static_cast<size_t>(parts.back().data() - text.data()) - kSeparator.size();
  const absl::string_view name = text.substr(start, end - start);
  node.is_input = absl::StartsWith(name, "Input");
  node.layer.name = absl::StrCat(parts.front(), " ", name);
  const absl::Status costs = ParseCosts(parts.back(), node.layer);
  if (!costs.ok()) return ErrorAt(line, costs.message());
  const auto [known, inserted] = graph.nodes.emplace(*number, std::move(node));
  if (inserted) return absl::OkStatus();
  return ErrorAt(line, absl::StrCat(parts.front(), " is also on line ", known->second.line));
}

absl::Status ParseEdgeLine(absl::string_view text, int line, Graph& graph) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, kSeparator);
  if (parts.size() != 2) {
    return ErrorAt(line, absl::StrCat(Quoted(text), ": expected \"node1 -- node2\""));
  }
  const absl::StatusOr<int64_t> from = ParseNode(parts[0]);
  if (!from.ok()) return ErrorAt(line, from.status().message());
  const absl::StatusOr<int64_t> to = ParseNode(parts[1]);
  if (!to.ok()) return ErrorAt(line, to.status().message());
  graph.arrows.push_back({*from, *to, line});
  if (graph.arrows.size() <= kMaxEdges) return absl::OkStatus();
  return ErrorAt(line, absl::StrCat("more than ", kMaxEdges, " edges"));
}

absl::StatusOr<Graph> ParseGraph(absl::string_view text) {
  Graph graph;
  int line = 0;
  for (absl::string_view row : absl::StrSplit(text, '\n')) {
    ++line;
    const bool is_edge = absl::StartsWith(row, "\t");
    row = absl::StripAsciiWhitespace(row);
    if (row.empty()) continue;
    if (row.size() > kMaxLineBytes) {
      return ErrorAt(line, absl::StrCat("longer than ", kMaxLineBytes, " bytes"));
    }
    RETURN_IF_ERROR(is_edge ? ParseEdgeLine(row, line, graph) : ParseNodeLine(row, line, graph));
  }
  for (const Arrow& arrow : graph.arrows) {
    for (const int64_t end : {arrow.from, arrow.to}) {
      if (!graph.nodes.contains(end)) {
        return ErrorAt(arrow.line, absl::StrCat("there is no node", end));
      }
    }
  }
  // Sorts by what they connect, then by line.
  std::sort(graph.arrows.begin(), graph.arrows.end(), [](const Arrow& a, const Arrow& b) {
    return std::tie(a.from, a.to, a.line) < std::tie(b.from, b.to, b.line);
  });
  for (size_t i = 1; i < graph.arrows.size(); ++i) {
    const Arrow& arrow = graph.arrows[i];
    if (arrow.from == graph.arrows[i - 1].from && arrow.to == graph.arrows[i - 1].to) {
      return ErrorAt(arrow.line,
                     absl::StrCat("the edge is also on line ", graph.arrows[i - 1].line));
    }
  }
  return graph;
}

}  // namespace

absl::StatusOr<Profile> ParsePipedreamProfile(absl::string_view text, absl::string_view model) {
  ASSIGN_OR_RETURN(const Graph graph, ParseGraph(text));
  Profile profile = {.model = std::string(model), .sizes = {SizedLayers()}};
  std::vector<LayerCost>& layers = profile.sizes.front().layers;
  std::map<int64_t, int> layer_of_node;
  std::vector<int> lines;
  for (const auto& [number, node] : graph.nodes) {
    if (node.is_input) continue;
    layer_of_node[number] = static_cast<int>(layers.size());
    layers.push_back(FromImported(node.layer));
    lines.push_back(node.line);
  }
  if (layers.empty()) return absl::InvalidArgumentError("there is no node but Input");
  for (const Arrow& arrow : graph.arrows) {
    const auto consumer = layer_of_node.find(arrow.to);
    if (consumer == layer_of_node.end()) return ErrorAt(arrow.line, "an Input reads nothing");
    int64_t& bytes = layers[static_cast<size_t>(consumer->second)].memory.input_bytes;
    bytes =
        std::min(bytes + graph.nodes.at(arrow.from).layer.output_bytes, schedule::kMaxSizeBytes);
    const auto producer = layer_of_node.find(arrow.from);
    if (producer == layer_of_node.end()) continue;
    profile.edges.push_back({producer->second, consumer->second});
  }
  if (layers.size() > 1 && profile.edges.empty()) {
    return absl::InvalidArgumentError("there is no edge between layers");
  }
  const TopologicalOrder order = SortLayers(static_cast<int>(layers.size()), profile.edges);
  if (order.on_cycle.has_value()) {
    const size_t layer = static_cast<size_t>(*order.on_cycle);
    return ErrorAt(lines[layer], absl::StrCat(layers[layer].name, " is on a cycle of edges"));
  }
  ReorderLayers(order.layers, profile);
  RETURN_IF_ERROR(CheckProfile(profile));
  return profile;
}

absl::StatusOr<Profile> ReadPipedreamProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxGraphBytes));
  absl::StatusOr<Profile> profile =
      ParsePipedreamProfile(text, std::filesystem::path(base::InputName(path)).stem().string());
  if (!profile.ok()) return base::InFile(profile.status(), path);
  return profile;
}

}  // namespace stagecoach::partition
