#include "partition/io/profile_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/nearest.h"
#include "partition/io/layer_graph.h"
#include "partition/io/profile_layer.h"
#include "partition/io/sized_reader.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using nlohmann::json;
using nlohmann::ordered_json;
using schedule::kMaxSizeBytes;

constexpr absl::string_view kProfileFormat = "stagecoach-profile";
constexpr int64_t kProfileVersion = 1;
constexpr int64_t kMaxProfileBytes = int64_t{64} << 20;

absl::Status ReadProfileHeader(ObjectReader& reader) {
  ASSIGN_OR_RETURN(const std::string format, reader.RequiredString("format"));
  if (format != kProfileFormat) {
    return reader.Error("format", absl::StrCat("must be \"", kProfileFormat, "\", found \"",
                                               absl::CHexEscape(format), "\": not a profile"));
  }
  ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
  if (version == kProfileVersion) return absl::OkStatus();
  return reader.Error("version", absl::StrCat("version ", version, ": this program reads version ",
                                              kProfileVersion));
}

absl::StatusOr<std::vector<int64_t>> ReadRows(const json& object, ObjectReader& reader) {
  constexpr base::Int64Range kRows = {.min = 1, .max = kMaxMicroBatchRows};
  if (!object.contains("micro_batch_rows") || !object["micro_batch_rows"].is_array()) {
    ASSIGN_OR_RETURN(const int64_t rows, reader.OptionalInt64("micro_batch_rows", 1, kRows));
    return std::vector<int64_t>{rows};
  }
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray("micro_batch_rows"));
  if (array.size() < 1 || array.size() > kMaxSizes) {
    return reader.Error("micro_batch_rows",
                        absl::StrCat("has ", array.size(), " sizes, expected 1 to ", kMaxSizes));
  }
  std::vector<int64_t> rows;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t size, array.Int64(i, kRows));
    if (!rows.empty() && size <= rows.back()) {
      return array.Error(i, absl::StrCat("must ascend: ", size, " follows ", rows.back()));
    }
    rows.push_back(size);
  }
  return rows;
}

absl::Status ReadLoss(const json& document, ObjectReader& reader, Profile& profile) {
  ASSIGN_OR_RETURN(std::optional<ObjectReader> object, reader.OptionalObject("loss"));
  if (!object.has_value()) return absl::OkStatus();
  SizedReader loss(document["loss"], *std::move(object), profile.sizes.size());
  ASSIGN_OR_RETURN(const std::vector<int64_t> workspace, loss.OptionalBytes("workspace_bytes"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> results, loss.OptionalBytes("bytes_per_micro_batch"));
  for (size_t i = 0; i < profile.sizes.size(); ++i) {
    profile.sizes[i].loss_workspace_bytes = workspace[i];
    profile.sizes[i].loss_bytes_per_micro_batch = results[i];
  }
  return loss.reader().Finish();
}

absl::Status ReadFeed(const json& document, ObjectReader& reader, Profile& profile) {
  ASSIGN_OR_RETURN(std::optional<ObjectReader> object, reader.OptionalObject("feed"));
  if (!object.has_value()) return absl::OkStatus();
  SizedReader feed(document["feed"], *std::move(object), profile.sizes.size());
  ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, feed.OptionalBytes("bytes_per_micro_batch"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> stage_bytes,
                   feed.OptionalBytes("stage_bytes_per_micro_batch"));
  for (size_t i = 0; i < profile.sizes.size(); ++i) {
    profile.sizes[i].feed_bytes_per_micro_batch = bytes[i];
    profile.sizes[i].stage_bytes_per_micro_batch = stage_bytes[i];
  }
  return feed.reader().Finish();
}

absl::StatusOr<std::vector<FileLayer>> ReadLayers(const json& document, const ArrayReader& array,
                                                  size_t sizes) {
  std::vector<FileLayer> layers;
  absl::flat_hash_set<std::string> names;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader reader, array.Object(i));
    const std::string path = reader.path();
    ASSIGN_OR_RETURN(FileLayer layer, ReadLayer(document["layers"][i], std::move(reader), sizes));
    const std::string& name = layer.sizes.front().name;
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ".name: an earlier layer is also called \"", absl::CHexEscape(name), "\""));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

// Reads which layers read which outputs. Names are those of the file.
absl::StatusOr<std::vector<Edge>> ReadEdges(const std::vector<FileLayer>& layers) {
  absl::flat_hash_map<std::string, int> layer_of_name;
  std::vector<std::string> names;
  for (const FileLayer& layer : layers) {
    names.push_back(layer.sizes.front().name);
    layer_of_name.emplace(names.back(), static_cast<int>(layer_of_name.size()));
  }
  std::vector<Edge> edges;
  for (int consumer = 0; consumer < static_cast<int>(layers.size()); ++consumer) {
    const FileLayer& layer = layers[static_cast<size_t>(consumer)];
    if (!layer.after.has_value() && consumer > 0) edges.push_back({consumer - 1, consumer});
    if (!layer.after.has_value()) continue;
    absl::flat_hash_set<std::string> seen;
    for (size_t i = 0; i < layer.after->size(); ++i) {
      const std::string& name = (*layer.after)[i];
      const auto error = [&](absl::string_view message) {
        return absl::InvalidArgumentError(absl::StrCat(
            "$.layers[", consumer, "].after[", i, "]: \"", absl::CHexEscape(name), "\" ", message));
      };
      const auto producer = layer_of_name.find(name);
      if (producer == layer_of_name.end()) {
        const std::string nearest = base::Nearest(name, names);
        return error(absl::StrCat("is not the name of a layer",
                                  nearest.empty() ? "" : "; did you mean \"", nearest,
                                  nearest.empty() ? "" : "\"?"));
      }
      if (!seen.insert(name).second) return error("appears twice");
      edges.push_back({producer->second, consumer});
      if (edges.size() > kMaxEdges) {
        return error(absl::StrCat("makes more than ", kMaxEdges, " edges"));
      }
    }
  }
  return edges;
}

absl::Status Connect(std::vector<FileLayer> layers, Profile& profile) {
  ASSIGN_OR_RETURN(profile.edges, ReadEdges(layers));
  if (layers.size() > 1 && profile.edges.empty()) {
    return absl::InvalidArgumentError(
        "$.layers: no layer reads another; leave \"after\" out if each reads the one before it");
  }
  const TopologicalOrder order = SortLayers(static_cast<int>(layers.size()), profile.edges);
  if (order.on_cycle.has_value()) {
    const size_t layer = static_cast<size_t>(*order.on_cycle);
    return absl::InvalidArgumentError(
        absl::StrCat("$.layers[", layer, "]", layers[layer].after.has_value() ? ".after" : "",
                     ": \"", absl::CHexEscape(layers[layer].sizes.front().name),
                     "\" is on a cycle: through other layers it reads its own output"));
  }
  for (size_t size = 0; size < profile.sizes.size(); ++size) {
    for (const Edge& edge : profile.edges) {
      FileLayer& consumer = layers[static_cast<size_t>(edge.consumer)];
      if (consumer.has_input_bytes) continue;
      int64_t& bytes = consumer.sizes[size].memory.input_bytes;
      const FileLayer& producer = layers[static_cast<size_t>(edge.producer)];
      bytes = std::min(bytes + producer.sizes[size].memory.output_bytes, kMaxSizeBytes);
    }
    for (FileLayer& layer : layers) {
      profile.sizes[size].layers.push_back(std::move(layer.sizes[size]));
    }
  }
  ReorderLayers(order.layers, profile);
  return absl::OkStatus();
}

// Reads the layers that are connected. Names are those of the file.
absl::Status ReadTies(const std::optional<ArrayReader>& array, Profile& profile) {
  if (!array.has_value()) return absl::OkStatus();
  const std::vector<LayerCost>& layers = profile.sizes.front().layers;
  for (size_t i = 0; i < array->size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader reader, array->Object(i));
    const auto layer_of = [&](const char* key) -> absl::StatusOr<int> {
      ASSIGN_OR_RETURN(const std::string name, reader.RequiredString(key));
      const auto found = std::find_if(layers.begin(), layers.end(),
                                      [&](const LayerCost& layer) { return layer.name == name; });
      if (found != layers.end()) return static_cast<int>(found - layers.begin());
      return reader.Error(
          key, absl::StrCat("\"", absl::CHexEscape(name), "\" is not the name of a layer"));
    };
    Tie tie;
    ASSIGN_OR_RETURN(tie.layer, layer_of("layer"));
    ASSIGN_OR_RETURN(tie.other_layer, layer_of("other_layer"));
    ASSIGN_OR_RETURN(tie.bytes,
                     reader.RequiredInt64("bytes", {.min = 1, .max = schedule::kMaxSizeBytes}));
    RETURN_IF_ERROR(reader.Finish());
    if (tie.layer >= tie.other_layer) {
      return reader.Error("other_layer", "must come after the first layer");
    }
    profile.ties.push_back(tie);
  }
  profile.collectives.ties = static_cast<int>(profile.ties.size());
  return absl::OkStatus();
}

absl::Status ReadOverheads(ObjectReader& reader, Overheads& overheads) {
  constexpr double kMaxMs = static_cast<double>(schedule::kMaxTimeNs) / 1e6;
  ASSIGN_OR_RETURN(const double message_ms,
                   reader.OptionalDouble("message_ms", 0.0, {.min = 0.0, .max = kMaxMs}));
  ASSIGN_OR_RETURN(const double step_ms,
                   reader.OptionalDouble("step_overhead_ms", 0.0, {.min = 0.0, .max = kMaxMs}));
  ASSIGN_OR_RETURN(const double gigabytes, reader.OptionalDouble("host_copy_gigabytes_per_second",
                                                                 0.0, {.min = 0.0, .max = 1e9}));
  ASSIGN_OR_RETURN(const bool overlaps, reader.OptionalBool("overlaps_host_copies", true));
  overheads = {
      .message_ns = message_ms * 1e6,
      .step_ns = step_ms * 1e6,
      .host_link = {.link = {.bytes_per_second = 1e9 * gigabytes}, .occupies_rank = !overlaps}};
  return absl::OkStatus();
}

absl::StatusOr<Profile> ReadProfile(const json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  RETURN_IF_ERROR(ReadProfileHeader(reader));
  Profile profile;
  ASSIGN_OR_RETURN(profile.model, reader.OptionalString("model", ""));
  ASSIGN_OR_RETURN(profile.updates_in_backward, reader.OptionalBool("updates_in_backward", false));
  ASSIGN_OR_RETURN(
      profile.collectives.norm_bytes,
      reader.OptionalInt64("norm_bytes", 0, {.min = 0, .max = schedule::kMaxSizeBytes}));
  RETURN_IF_ERROR(ReadOverheads(reader, profile.overheads));
  ASSIGN_OR_RETURN(const std::vector<int64_t> rows, ReadRows(document, reader));
  profile.sizes.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) profile.sizes[i].micro_batch_rows = rows[i];
  RETURN_IF_ERROR(ReadFeed(document, reader, profile));
  RETURN_IF_ERROR(ReadLoss(document, reader, profile));
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray("layers"));
  ASSIGN_OR_RETURN(const std::optional<ArrayReader> ties, reader.OptionalArray("ties"));
  RETURN_IF_ERROR(reader.Finish());
  if (array.size() < 1 || array.size() > kMaxLayers) {
    return reader.Error("layers",
                        absl::StrCat("has ", array.size(), " layers, expected 1 to ", kMaxLayers));
  }
  if (array.size() * rows.size() > kMaxLayerCosts) {
    return reader.Error("layers",
                        absl::StrCat("has ", array.size(), " layers for ", rows.size(),
                                     " sizes, expected a product of at most ", kMaxLayerCosts));
  }
  ASSIGN_OR_RETURN(std::vector<FileLayer> layers, ReadLayers(document, array, rows.size()));
  RETURN_IF_ERROR(Connect(std::move(layers), profile));
  RETURN_IF_ERROR(ReadTies(ties, profile));
  RETURN_IF_ERROR(CheckProfile(profile));
  return profile;
}

ordered_json TiesToJson(const Profile& profile) {
  const auto name = [&](int layer) {
    return profile.sizes.front().layers[static_cast<size_t>(layer)].name;
  };
  ordered_json ties = ordered_json::array();
  for (const Tie& tie : profile.ties) {
    ties.push_back(
        {{"layer", name(tie.layer)}, {"other_layer", name(tie.other_layer)}, {"bytes", tie.bytes}});
  }
  return ties;
}

// Returns the line of an overhead, kept to the picosecond as all times are; "" if it is unknown.
std::string OverheadToJson(absl::string_view key, double ns) {
  const double ms = std::round(ns * 1e3) / 1e9;
  if (ms == 0) return "";
  return absl::StrCat(",\n  \"", key, "\": ", ordered_json(ms).dump());
}

// Returns the lines of the link to the host's memory, in MB per second; "" if it is unknown.
std::string HostLinkToJson(const schedule::HostLink& host) {
  const double gigabytes = std::round(host.link.bytes_per_second / 1e6) / 1e3;
  if (gigabytes == 0) return "";
  return absl::StrCat(",\n  \"host_copy_gigabytes_per_second\": ", ordered_json(gigabytes).dump(),
                      host.occupies_rank ? ",\n  \"overlaps_host_copies\": false" : "");
}

// Replaces invalid UTF-8, since printing such a string would throw.
std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<Profile> ParseProfileJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const json document, base::ParseJson(text, {.max_bytes = kMaxProfileBytes}));
  absl::StatusOr<Profile> profile = ReadProfile(document);
  if (!profile.ok()) return base::WithJsonPlace(profile.status(), text);
  return profile;
}

absl::StatusOr<Profile> ReadProfileFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxProfileBytes));
  absl::StatusOr<Profile> profile = ParseProfileJson(text);
  if (!profile.ok()) return base::InFile(profile.status(), path);
  return profile;
}

std::string ToProfileJson(const Profile& profile) {
  std::vector<int64_t> rows, feed, stages, workspace, results;
  for (const SizedLayers& size : profile.sizes) {
    rows.push_back(size.micro_batch_rows);
    feed.push_back(size.feed_bytes_per_micro_batch);
    stages.push_back(size.stage_bytes_per_micro_batch);
    workspace.push_back(size.loss_workspace_bytes);
    results.push_back(size.loss_bytes_per_micro_batch);
  }
  const ordered_json loss = {{"workspace_bytes", OneOrAll(workspace)},
                             {"bytes_per_micro_batch", OneOrAll(results)}};
  // Few models have one, so it is written only if there is one.
  ordered_json feed_object;
  const auto add_feed = [&](const char* key, const std::vector<int64_t>& bytes) {
    const bool is_fed = std::any_of(bytes.begin(), bytes.end(), [](int64_t b) { return b > 0; });
    if (is_fed) feed_object[key] = OneOrAll(bytes);
  };
  add_feed("bytes_per_micro_batch", feed);
  add_feed("stage_bytes_per_micro_batch", stages);
  const int64_t norm_bytes = profile.collectives.norm_bytes;
  std::string text = absl::StrCat(
      "{\n  \"format\": \"", kProfileFormat, "\",\n  \"version\": ", kProfileVersion,
      ",\n  \"model\": ", Dump(profile.model),
      ",\n  \"updates_in_backward\": ", profile.updates_in_backward ? "true" : "false",
      norm_bytes == 0 ? "" : absl::StrCat(",\n  \"norm_bytes\": ", norm_bytes),
      OverheadToJson("message_ms", profile.overheads.message_ns),
      OverheadToJson("step_overhead_ms", profile.overheads.step_ns),
      HostLinkToJson(profile.overheads.host_link), ",\n  \"micro_batch_rows\": ", Dump(rows),
      feed_object.empty() ? "" : absl::StrCat(",\n  \"feed\": ", Dump(feed_object)),
      ",\n  \"loss\": ", Dump(loss), ",\n  \"layers\": [");
  std::vector<std::vector<std::string>> after(static_cast<size_t>(profile.num_layers()));
  for (const Edge& edge : profile.edges) {
    after[static_cast<size_t>(edge.consumer)].push_back(
        profile.sizes.front().layers[static_cast<size_t>(edge.producer)].name);
  }
  for (size_t i = 0; i < after.size(); ++i) {
    ordered_json layer = ToJson(profile, i);
    if (!profile.is_chain()) layer["after"] = after[i];
    absl::StrAppend(&text, i == 0 ? "\n    " : ",\n    ", Dump(layer));
  }
  text += "\n  ]";
  if (!profile.ties.empty()) absl::StrAppend(&text, ",\n  \"ties\": ", Dump(TiesToJson(profile)));
  return text + "\n}\n";
}

absl::Status WriteProfileFile(const std::string& path, const Profile& profile) {
  RETURN_IF_ERROR(base::Annotate(CheckProfile(profile), path));
  return base::WriteFileAtomically(path, ToProfileJson(profile));
}

}  // namespace stagecoach::partition
