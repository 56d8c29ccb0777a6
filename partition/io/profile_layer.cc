#include "partition/io/profile_layer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/cost/layer_fields.h"
#include "partition/io/sized_reader.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using nlohmann::ordered_json;
using schedule::kMaxSizeBytes;
using schedule::LastUse;

constexpr base::DoubleRange kFlops = {.min = 0, .max = 1e30};
constexpr base::DoubleRange kSpread = {.min = 0, .max = 1e6};

constexpr std::array<const char*, 3> kLastUses = {"forward", "backward_input", "backward_weight"};

const char* WordOf(LastUse use) { return kLastUses[static_cast<size_t>(use)]; }

absl::StatusOr<LastUse> OptionalLastUse(ObjectReader& reader, const char* key, LastUse fallback,
                                        LastUse least) {
  if (!reader.Has(key)) return fallback;
  ASSIGN_OR_RETURN(const std::string word, reader.RequiredString(key));
  for (size_t use = static_cast<size_t>(least); use < kLastUses.size(); ++use) {
    if (word == kLastUses[use]) return static_cast<LastUse>(use);
  }
  return reader.Error(key,
                      absl::StrCat("must be ", least == LastUse::kForward ? "\"forward\", " : "",
                                   "\"backward_input\" or \"backward_weight\", found \"",
                                   absl::CHexEscape(word), "\""));
}

void Assign(const std::vector<int64_t>& values, int64_t LayerMemory::*member,
            std::vector<LayerCost>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i].memory.*member = values[i];
}

void Assign(const std::vector<double>& values, double LayerCost::*member,
            std::vector<LayerCost>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i].*member = values[i];
}

absl::Status ReadTimes(SizedReader& reader, std::vector<LayerCost>& sizes) {
  ASSIGN_OR_RETURN(const std::vector<double> forward, reader.RequiredTimes("forward_ms"));
  Assign(forward, &LayerCost::forward_ns, sizes);
  ASSIGN_OR_RETURN(const std::vector<double> step, reader.OptionalTimes("step_ms"));
  Assign(step, &LayerCost::step_ns, sizes);
  ObjectReader& object = reader.reader();
  const bool is_split = object.Has("backward_input_ms") || object.Has("backward_weight_ms");
  if (!is_split) {
    ASSIGN_OR_RETURN(const std::vector<double> backward, reader.RequiredTimes("backward_ms"));
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i].backward_weight_ns = sizes[i].parameters > 0 ? backward[i] / 2 : 0;
      sizes[i].backward_input_ns = backward[i] - sizes[i].backward_weight_ns;
    }
    return absl::OkStatus();
  }
  if (object.Has("backward_ms")) {
    return object.Error(
        "backward_ms",
        "is the sum of backward_input_ms and backward_weight_ms: give it or these two");
  }
  ASSIGN_OR_RETURN(const std::vector<double> input, reader.RequiredTimes("backward_input_ms"));
  Assign(input, &LayerCost::backward_input_ns, sizes);
  ASSIGN_OR_RETURN(const std::vector<double> weight, reader.RequiredTimes("backward_weight_ms"));
  Assign(weight, &LayerCost::backward_weight_ns, sizes);
  ASSIGN_OR_RETURN(const std::vector<double> shared, reader.OptionalTimes("shared_backward_ms"));
  Assign(shared, &LayerCost::shared_backward_ns, sizes);
  return absl::OkStatus();
}

absl::Status ReadParameters(SizedReader& reader, std::vector<LayerCost>& sizes) {
  ASSIGN_OR_RETURN(const int64_t count, reader.reader().OptionalInt64(
                                            "parameters", -1, {.min = 0, .max = kMaxSizeBytes}));
  const int64_t bytes_of_count = std::min(4 * std::max(count, int64_t{0}), kMaxSizeBytes);
  ASSIGN_OR_RETURN(
      const std::vector<int64_t> bytes,
      reader.OptionalBytes("parameter_bytes", std::vector<int64_t>(sizes.size(), bytes_of_count)));
  Assign(bytes, &LayerMemory::parameter_bytes, sizes);
  std::vector<int64_t> optimizer_bytes;
  for (const int64_t each : bytes) optimizer_bytes.push_back(std::min(2 * each, kMaxSizeBytes));
  ASSIGN_OR_RETURN(optimizer_bytes,
                   reader.OptionalBytes("optimizer_bytes", std::move(optimizer_bytes)));
  Assign(optimizer_bytes, &LayerMemory::optimizer_bytes, sizes);
  for (LayerCost& layer : sizes) layer.parameters = count >= 0 ? count : bytes.front() / 4;
  return absl::OkStatus();
}

absl::Status ReadRepeated(SizedReader& reader, std::vector<LayerCost>& sizes) {
  ASSIGN_OR_RETURN(const std::vector<double> forward, reader.RequiredTimes("repeated_forward_ms"));
  ASSIGN_OR_RETURN(const std::vector<double> flops,
                   reader.OptionalDoubles("repeated_flops", kFlops));
  ASSIGN_OR_RETURN(const std::vector<int64_t> stash, reader.OptionalBytes("repeated_stash_bytes"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> weight_stash,
                   reader.OptionalBytes("repeated_weight_stash_bytes"));
  for (size_t i = 0; i < sizes.size(); ++i) {
    const LayerMemory& memory = sizes[i].memory;
    const auto check = [&](const char* key, int64_t bytes, const char* whole,
                           int64_t most) -> absl::Status {
      if (bytes <= most) return absl::OkStatus();
      return reader.reader().Error(
          key, absl::StrCat("is ", bytes, ", expected at most ", whole, ", ", most));
    };
    RETURN_IF_ERROR(check("repeated_stash_bytes", stash[i], "stash_bytes", memory.stash_bytes));
    RETURN_IF_ERROR(check("repeated_weight_stash_bytes", weight_stash[i], "weight_stash_bytes",
                          memory.weight_stash_bytes));
    SetRepeated({.forward_ns = forward[i],
                 .flops = flops[i],
                 .stash_bytes = stash[i],
                 .weight_stash_bytes = weight_stash[i]},
                sizes[i]);
  }
  return absl::OkStatus();
}

template <typename T, typename Value>
ordered_json ForAllSizes(const Profile& profile, size_t index, Value value) {
  std::vector<T> values;
  for (const SizedLayers& size : profile.sizes) values.push_back(value(size.layers[index]));
  return OneOrAll(values);
}

void AddRepeated(const Profile& profile, size_t index, ordered_json& layer) {
  const auto add = [&](const char* key, auto value) {
    layer[key] = ForAllSizes<decltype(value(RepeatedPart()))>(
        profile, index, [&](const LayerCost& cost) { return value(*cost.repeated); });
  };
  add("repeated_forward_ms",
      [](const RepeatedPart& part) { return MillisecondsOf(part.forward_ns); });
  add("repeated_flops", [](const RepeatedPart& part) { return part.flops; });
  add("repeated_stash_bytes", [](const RepeatedPart& part) { return part.stash_bytes; });
  add("repeated_weight_stash_bytes",
      [](const RepeatedPart& part) { return part.weight_stash_bytes; });
}

absl::Status ReadSizes(SizedReader& reader, FileLayer& layer) {
  std::vector<LayerCost>& sizes = layer.sizes;
  ObjectReader& object = reader.reader();
  for (const BytesField& field : kBytesFields) {
    if (field.in_profile != InProfile::kPlain) continue;
    ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, reader.OptionalBytes(field.name));
    Assign(bytes, field.value, sizes);
  }
  layer.has_input_bytes = object.Has("input_bytes");
  ASSIGN_OR_RETURN(const std::vector<int64_t> input, reader.OptionalBytes("input_bytes"));
  Assign(input, &LayerMemory::input_bytes, sizes);
  if (object.Has("repeated_forward_ms")) {
    if (object.Has("recompute_stash_bytes")) {
      return object.Error("recompute_stash_bytes",
                          "is of a layer that repeats all of F: give it or repeated_forward_ms");
    }
    RETURN_IF_ERROR(ReadRepeated(reader, sizes));
  } else if (object.Has("recompute_stash_bytes")) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> bytes,
                     reader.OptionalBytes("recompute_stash_bytes"));
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i].recompute_stash_bytes = bytes[i];
  }
  const LastUse by_backward =
      sizes.front().parameters > 0 ? LastUse::kBackwardWeight : LastUse::kBackwardInput;
  LayerMemory uses;
  ASSIGN_OR_RETURN(uses.input_last_use,
                   OptionalLastUse(object, "input_last_use", by_backward, LastUse::kForward));
  ASSIGN_OR_RETURN(uses.output_last_use, OptionalLastUse(object, "output_last_use",
                                                         LastUse::kForward, LastUse::kForward));
  ASSIGN_OR_RETURN(
      uses.output_gradient_last_use,
      OptionalLastUse(object, "output_gradient_last_use", by_backward, LastUse::kBackwardInput));
  for (LayerCost& size : sizes) {
    size.memory.input_last_use = uses.input_last_use;
    size.memory.output_last_use = uses.output_last_use;
    size.memory.output_gradient_last_use = uses.output_gradient_last_use;
  }
  return absl::OkStatus();
}

ordered_json Times(const Profile& profile, size_t index, double LayerCost::*member) {
  return ForAllSizes<double>(
      profile, index, [member](const LayerCost& layer) { return MillisecondsOf(layer.*member); });
}

ordered_json Doubles(const Profile& profile, size_t index, double LayerCost::*member) {
  return ForAllSizes<double>(profile, index,
                             [member](const LayerCost& layer) { return layer.*member; });
}

ordered_json Bytes(const Profile& profile, size_t index, int64_t LayerMemory::*member) {
  return ForAllSizes<int64_t>(profile, index,
                              [member](const LayerCost& layer) { return layer.memory.*member; });
}

}  // namespace

absl::StatusOr<FileLayer> ReadLayer(const nlohmann::json& object, ObjectReader object_reader,
                                    size_t sizes) {
  FileLayer layer;
  layer.sizes.resize(sizes);
  SizedReader reader(object, std::move(object_reader), sizes);
  ASSIGN_OR_RETURN(const std::string name, reader.reader().RequiredString("name"));
  if (name.empty()) return reader.reader().Error("name", "must not be empty");
  for (LayerCost& size : layer.sizes) size.name = name;
  RETURN_IF_ERROR(ReadParameters(reader, layer.sizes));
  RETURN_IF_ERROR(ReadTimes(reader, layer.sizes));
  ASSIGN_OR_RETURN(const std::vector<double> flops, reader.OptionalDoubles("flops", kFlops));
  Assign(flops, &LayerCost::flops, layer.sizes);
  ASSIGN_OR_RETURN(const std::vector<double> spread, reader.OptionalDoubles("spread", kSpread));
  Assign(spread, &LayerCost::spread, layer.sizes);
  RETURN_IF_ERROR(ReadSizes(reader, layer));
  ASSIGN_OR_RETURN(const std::optional<ArrayReader> after, reader.reader().OptionalArray("after"));
  if (after.has_value()) {
    layer.after.emplace();
    for (size_t i = 0; i < after->size(); ++i) {
      ASSIGN_OR_RETURN(layer.after->emplace_back(), after->String(i));
    }
  }
  RETURN_IF_ERROR(reader.reader().Finish());
  return layer;
}

ordered_json ToJson(const Profile& profile, size_t index) {
  const LayerCost& first = profile.sizes.front().layers[index];
  ordered_json layer = {{"name", first.name}, {"parameters", first.parameters}};
  layer["forward_ms"] = Times(profile, index, &LayerCost::forward_ns);
  layer["backward_input_ms"] = Times(profile, index, &LayerCost::backward_input_ns);
  layer["backward_weight_ms"] = Times(profile, index, &LayerCost::backward_weight_ns);
  const bool shares = std::any_of(
      profile.sizes.begin(), profile.sizes.end(),
      [index](const SizedLayers& size) { return size.layers[index].shared_backward_ns > 0; });
  if (shares) layer["shared_backward_ms"] = Times(profile, index, &LayerCost::shared_backward_ns);
  layer["step_ms"] = Times(profile, index, &LayerCost::step_ns);
  layer["spread"] = Doubles(profile, index, &LayerCost::spread);
  layer["flops"] = Doubles(profile, index, &LayerCost::flops);
  layer["parameter_bytes"] = Bytes(profile, index, &LayerMemory::parameter_bytes);
  layer["optimizer_bytes"] = Bytes(profile, index, &LayerMemory::optimizer_bytes);
  layer["input_bytes"] = Bytes(profile, index, &LayerMemory::input_bytes);
  for (const BytesField& field : kBytesFields) {
    if (field.in_profile != InProfile::kPlain) continue;
    layer[field.name] = Bytes(profile, index, field.value);
  }
  if (first.repeated.has_value()) {
    AddRepeated(profile, index, layer);
  } else if (first.recompute_stash_bytes.has_value()) {
    layer["recompute_stash_bytes"] = ForAllSizes<int64_t>(
        profile, index, [](const LayerCost& cost) { return *cost.recompute_stash_bytes; });
  }
  layer["input_last_use"] = WordOf(first.memory.input_last_use);
  layer["output_last_use"] = WordOf(first.memory.output_last_use);
  layer["output_gradient_last_use"] = WordOf(first.memory.output_gradient_last_use);
  return layer;
}

}  // namespace stagecoach::partition
