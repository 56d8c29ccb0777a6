#include "partition/io/plan_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "partition/cost/cluster.h"
#include "partition/cost/profile.h"
#include "schedule/generators/generators.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using schedule::Rank;
using schedule::Schedule;

constexpr int64_t kMaxPlanBytes = int64_t{256} << 20;
constexpr int64_t kMaxRows = int64_t{1} << 32;  // keeps the batch size from overflowing
// Limit for a schedule that is referred to by its name, which costs the file nothing.
constexpr int64_t kMaxGeneratedPasses = int64_t{1} << 22;
constexpr int64_t kMaxBlocks = schedule::kMaxPasses;
constexpr int64_t kMostPartBytes = int64_t{1} << 30;
constexpr absl::string_view kPlanFormat = "stagecoach-plan";
constexpr int64_t kPlanVersion = 1;

// ---- Reading ----

absl::Status ReadPlanHeader(ObjectReader& reader) {
  ASSIGN_OR_RETURN(const std::string format, reader.RequiredString("format"));
  if (format != kPlanFormat) {
    return reader.Error("format", absl::StrCat("must be \"", kPlanFormat, "\": not a plan"));
  }
  ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
  if (version == kPlanVersion) return absl::OkStatus();
  return reader.Error("version", absl::StrCat("must be ", kPlanVersion, ", found ", version,
                                              ": written by another version of Stagecoach"));
}

absl::StatusOr<int> ReadInt(ObjectReader& reader, absl::string_view key, base::Int64Range range) {
  ASSIGN_OR_RETURN(const int64_t number, reader.RequiredInt64(key, range));
  return static_cast<int>(number);
}

absl::StatusOr<std::vector<int>> ReadInts(const ArrayReader& array, base::Int64Range range) {
  std::vector<int> numbers;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t number, array.Int64(i, range));
    numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

// Fills first_layer; returns the ranks in the file.
absl::StatusOr<std::vector<Rank>> ReadStages(const ArrayReader& stages, Plan& plan) {
  std::vector<Rank> ranks;
  int next_layer = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    ASSIGN_OR_RETURN(ObjectReader reader, stages.Object(stage));
    ASSIGN_OR_RETURN(const int first, ReadInt(reader, "first_layer", {}));
    if (first != next_layer) {
      return reader.Error(
          "first_layer",
          absl::StrCat("must be ", next_layer,
                       stage == 0 ? "" : ", the layer after the last one of the stage before",
                       ", found ", first));
    }
    ASSIGN_OR_RETURN(const int last,
                     ReadInt(reader, "last_layer", {.min = first, .max = plan.num_layers - 1}));
    const bool is_last = stage + 1 == stages.size();
    if (is_last && last != plan.num_layers - 1) {
      return reader.Error("last_layer", absl::StrCat("must be ", plan.num_layers - 1,
                                                     ", the last layer, found ", last));
    }
    ASSIGN_OR_RETURN(
        const int rank,
        ReadInt(reader, "rank", {.min = 0, .max = static_cast<int64_t>(stages.size()) - 1}));
    RETURN_IF_ERROR(reader.Finish());
    plan.first_layer.push_back(first);
    ranks.emplace_back(rank);
    next_layer = last + 1;
  }
  return ranks;
}

absl::Status ReadReplication(ObjectReader& reader, Plan& plan, int micro_batches) {
  if (reader.OptionalArray("replicas").ok() && reader.Has("replicas")) {
    return reader.Error("replicas", "must be one number: all ranks have the same now");
  }
  ASSIGN_OR_RETURN(const int64_t replicas,
                   reader.OptionalInt64("replicas", 1, {.min = 1, .max = kMaxDevices}));
  ASSIGN_OR_RETURN(const int64_t blocks, reader.OptionalInt64("gradient_blocks", replicas,
                                                              {.min = 1, .max = kMaxBlocks}));
  ASSIGN_OR_RETURN(const bool shards_optimizer, reader.OptionalBool("shard_optimizer", false));
  ASSIGN_OR_RETURN(const std::string reduction, reader.OptionalString("reduction", "tree"));
  ASSIGN_OR_RETURN(const int64_t part_bytes,
                   reader.OptionalInt64("reduction_part_bytes", kReductionPartBytes,
                                        {.min = kTensorAlignment, .max = kMostPartBytes}));
  const absl::StatusOr<ReductionKind> kind = ParseReductionKind(reduction);
  if (!kind.ok()) return reader.Error("reduction", kind.status().message());
  ASSIGN_OR_RETURN(const bool offloads, reader.OptionalBool("offload_optimizer", false));
  plan.replication = {static_cast<int>(replicas),
                      static_cast<int>(blocks),
                      shards_optimizer,
                      *kind,
                      part_bytes,
                      offloads};
  // A key is refused for its effect on those before it.
  const struct {
    const char* key;
    Replication replication;
    int micro_batches;
  } steps[] = {
      {"replicas", {plan.replicas(), plan.replicas()}, plan.replicas()},
      {"gradient_blocks", {plan.replicas(), static_cast<int>(blocks)}, static_cast<int>(blocks)},
      {"shard_optimizer",
       {plan.replicas(), static_cast<int>(blocks), shards_optimizer},
       static_cast<int>(blocks)},
      {"reduction",
       {plan.replicas(), static_cast<int>(blocks), shards_optimizer, *kind},
       static_cast<int>(blocks)},
      {"reduction_part_bytes", plan.replication, static_cast<int>(blocks)},
      {"micro_batches", plan.replication, micro_batches}};
  for (const auto& step : steps) {
    const absl::Status status = CheckReplication(step.replication, step.micro_batches);
    if (!status.ok()) return reader.Error(step.key, status.message());
  }
  return absl::OkStatus();
}

// Returns the schedule of each replica; all together perform `micro_batches`.
absl::StatusOr<Schedule> ReadGenerated(ObjectReader& reader, const std::string& name,
                                       int num_stages, int replicas, int micro_batches) {
  ASSIGN_OR_RETURN(const int chunks, ReadInt(reader, "chunks", {.min = 1, .max = num_stages}));
  if (num_stages % chunks != 0) {
    return reader.Error("chunks",
                        absl::StrCat(num_stages, " stages cannot be divided into ranks of ", chunks,
                                     " chunks each"));
  }
  const int of_each = micro_batches / replicas;
  if (num_stages * int64_t{of_each} > kMaxGeneratedPasses) {
    return reader.Error(
        "micro_batches",
        absl::StrCat("must be at most ", kMaxGeneratedPasses / num_stages * replicas, " of ",
                     num_stages, " stages, found ", micro_batches));
  }
  absl::StatusOr<Schedule> made = schedule::Generate(
      name, {.ranks = num_stages / chunks, .micro_batches = of_each, .chunks = chunks});
  if (made.ok()) return made;
  const bool is_unlike_any =
      absl::IsNotFound(made.status()) && !absl::EndsWith(made.status().message(), "?");
  return reader.Error(
      "schedule",
      absl::StrCat(made.status().message(),
                   is_unlike_any ? "; any other schedule is written in full, as an object" : ""));
}

absl::StatusOr<Schedule> ReadEmbedded(ObjectReader& reader, int replicas, int micro_batches) {
  if (reader.Has("chunks")) {
    return reader.Error("chunks", "is only for a schedule that is given by its name");
  }
  ASSIGN_OR_RETURN(ObjectReader object, reader.RequiredObject("schedule"));
  ASSIGN_OR_RETURN(Schedule schedule, schedule::ReadSchedule(object));
  const int64_t expected = int64_t{replicas} * schedule.num_micro_batches;
  if (expected == micro_batches) return schedule;
  return reader.Error(
      "micro_batches",
      absl::StrCat(
          "must be ", expected, ", as in the schedule",
          replicas > 1 ? absl::StrCat(", which each of ", replicas, " replicas performs") : "",
          ", found ", micro_batches));
}

absl::Status CheckRanks(const ArrayReader& stages, const std::vector<Rank>& ranks,
                        const Schedule& schedule) {
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    const Rank expected = schedule.rank_of_stage[stage];
    if (ranks[stage] == expected) continue;
    ASSIGN_OR_RETURN(const ObjectReader reader, stages.Object(stage));
    return reader.Error("rank",
                        absl::StrCat("must be ", expected.value(), ", where ", schedule.name,
                                     " has this stage, found ", ranks[stage].value()));
  }
  return absl::OkStatus();
}

absl::Status ReadSchedule(ObjectReader& reader, bool is_named, const ArrayReader& stages,
                          const std::vector<Rank>& ranks, Plan& plan, int micro_batches) {
  const int num_stages = static_cast<int>(ranks.size());
  if (is_named) {
    ASSIGN_OR_RETURN(const std::string name, reader.RequiredString("schedule"));
    ASSIGN_OR_RETURN(plan.schedule,
                     ReadGenerated(reader, name, num_stages, plan.replicas(), micro_batches));
  } else {
    ASSIGN_OR_RETURN(plan.schedule, ReadEmbedded(reader, plan.replicas(), micro_batches));
  }
  if (plan.schedule.num_stages() != num_stages) {
    return reader.Error("stages", absl::StrCat("must be ", plan.schedule.num_stages(),
                                               ", as in the schedule, found ", num_stages));
  }
  return CheckRanks(stages, ranks, plan.schedule);
}

absl::Status ReadRecomputed(const ArrayReader& array, Plan& plan) {
  ASSIGN_OR_RETURN(plan.recomputed, ReadInts(array, {.min = 0, .max = plan.num_layers - 1}));
  for (size_t i = 1; i < plan.recomputed.size(); ++i) {
    if (plan.recomputed[i] > plan.recomputed[i - 1]) continue;
    return array.Error(i, absl::StrCat("must be above the ", plan.recomputed[i - 1],
                                       " before it, found ", plan.recomputed[i]));
  }
  return absl::OkStatus();
}

absl::Status ReadOrder(const ArrayReader& array, Plan& plan) {
  if (static_cast<int>(array.size()) != plan.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(array.path(), ": must be all ", plan.num_layers,
                                                   " layers, found ", array.size()));
  }
  ASSIGN_OR_RETURN(plan.order, ReadInts(array, {.min = 0, .max = plan.num_layers - 1}));
  std::vector<bool> seen(plan.order.size());
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const auto layer = static_cast<size_t>(plan.order[i]);
    if (seen[layer]) return array.Error(i, absl::StrCat("layer ", layer, " appears twice"));
    seen[layer] = true;
  }
  return absl::OkStatus();
}

absl::Status ReadDevices(const ArrayReader& array, PlanFile& file) {
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(file.devices.emplace_back(), array.String(i));
    if (std::count(file.devices.begin(), file.devices.end(), file.devices.back()) == 1) continue;
    return array.Error(i, "appears twice");
  }
  if (static_cast<int>(array.size()) == file.plan.num_devices()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(array.path(), ": must be the names of the ",
                                                 file.plan.num_devices(),
                                                 " devices of the plan, found ", array.size()));
}

absl::StatusOr<PlanFile> ReadPlan(ObjectReader& reader, bool is_named) {
  RETURN_IF_ERROR(ReadPlanHeader(reader));
  PlanFile file;
  Plan& plan = file.plan;
  ASSIGN_OR_RETURN(file.model, reader.OptionalString("model", ""));
  ASSIGN_OR_RETURN(file.parameter_bytes, reader.OptionalInt64("parameter_bytes", 0, {.min = 0}));
  ASSIGN_OR_RETURN(plan.num_layers, ReadInt(reader, "layers", {.min = 1, .max = kMaxLayers}));
  ASSIGN_OR_RETURN(const int micro_batches,
                   ReadInt(reader, "micro_batches", {.min = 1, .max = schedule::kMaxPasses}));
  ASSIGN_OR_RETURN(plan.micro_batch_rows,
                   reader.RequiredInt64("micro_batch_rows", {.min = 1, .max = kMaxRows}));
  ASSIGN_OR_RETURN(const ArrayReader stages, reader.RequiredArray("stages"));
  if (stages.size() == 0) return reader.Error("stages", "must have at least one stage");
  ASSIGN_OR_RETURN(const std::vector<Rank> ranks, ReadStages(stages, plan));
  RETURN_IF_ERROR(ReadReplication(reader, plan, micro_batches));
  ASSIGN_OR_RETURN(const int64_t parts,
                   reader.OptionalInt64("tensor_parallel", 1, {.min = 1, .max = kMaxDevices}));
  plan.tensor_parts = static_cast<int>(parts);
  RETURN_IF_ERROR(ReadSchedule(reader, is_named, stages, ranks, plan, micro_batches));

  const auto read_if_there = [&](absl::string_view key,
                                 absl::Status (*read)(const ArrayReader&, Plan&)) -> absl::Status {
    ASSIGN_OR_RETURN(const std::optional<ArrayReader> array, reader.OptionalArray(key));
    return array.has_value() ? read(*array, plan) : absl::OkStatus();
  };
  RETURN_IF_ERROR(read_if_there("recomputed_layers", ReadRecomputed));
  RETURN_IF_ERROR(read_if_there("order", ReadOrder));
  ASSIGN_OR_RETURN(plan.offload, reader.OptionalDouble("offload", 0.0, {.min = 0, .max = 1}));
  ASSIGN_OR_RETURN(const std::optional<ArrayReader> devices, reader.OptionalArray("devices"));
  if (devices.has_value()) RETURN_IF_ERROR(ReadDevices(*devices, file));
  RETURN_IF_ERROR(reader.Finish());
  absl::Status proof = CheckTrains(plan.schedule);
  if (proof.ok()) proof = CheckPerformable(plan);
  if (!proof.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(reader.path(), ": ", proof.message()));
  }
  return file;
}

// ---- Writing ----

// Quotes a string, replacing invalid UTF-8, since printing that would throw.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Returns the number of stages per rank with which a generator makes this schedule; 0 if none does.
int ChunksIfGenerated(const Schedule& schedule) {
  if (schedule.num_stages() % schedule.num_ranks() != 0) return 0;
  const int64_t passes = schedule.num_stages() * int64_t{schedule.num_micro_batches};
  if (passes > kMaxGeneratedPasses) return 0;
  const int chunks = schedule.num_stages() / schedule.num_ranks();
  const absl::StatusOr<Schedule> made =
      schedule::Generate(schedule.name, {.ranks = schedule.num_ranks(),
                                         .micro_batches = schedule.num_micro_batches,
                                         .chunks = chunks});
  return made.ok() && *made == schedule ? chunks : 0;
}

std::string StageLines(const Plan& plan) {
  std::vector<std::string> lines;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const Rank rank = plan.schedule.rank_of(schedule::StageId(stage));
    lines.push_back(absl::StrCat("    {\"first_layer\": ", plan.first(stage), ", \"last_layer\": ",
                                 plan.last(stage), ", \"rank\": ", rank.value(), "}"));
  }
  return absl::StrCat("[\n", absl::StrJoin(lines, ",\n"), "\n  ]");
}

void AppendList(absl::string_view key, const std::vector<int>& numbers, std::string& text) {
  if (numbers.empty()) return;
  absl::StrAppend(&text, ",\n  \"", key, "\": [", absl::StrJoin(numbers, ", "), "]");
}

}  // namespace

absl::StatusOr<PlanFile> ParsePlanJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text, {.max_bytes = kMaxPlanBytes}));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json));
  const auto schedule = json.find("schedule");
  absl::StatusOr<PlanFile> file =
      ReadPlan(reader, schedule == json.end() || !schedule->is_object());
  if (!file.ok()) return base::WithJsonPlace(file.status(), text);
  return file;
}

std::string ToPlanJson(const PlanFile& file) {
  const Plan& plan = file.plan;
  const int chunks = ChunksIfGenerated(plan.schedule);
  std::string text =
      absl::StrCat("{\n  \"format\": \"", kPlanFormat, "\",\n  \"version\": ", kPlanVersion);
  if (!file.model.empty()) absl::StrAppend(&text, ",\n  \"model\": ", Quoted(file.model));
  if (file.parameter_bytes > 0) {
    absl::StrAppend(&text, ",\n  \"parameter_bytes\": ", file.parameter_bytes);
  }
  absl::StrAppend(&text, ",\n  \"layers\": ", plan.num_layers,
                  ",\n  \"micro_batches\": ", plan.micro_batches(),
                  ",\n  \"micro_batch_rows\": ", plan.micro_batch_rows);
  if (chunks > 0) {
    absl::StrAppend(&text, ",\n  \"schedule\": ", Quoted(plan.schedule.name),
                    ",\n  \"chunks\": ", chunks);
  }
  absl::StrAppend(&text, ",\n  \"stages\": ", StageLines(plan));
  const auto [replicas, blocks, shards_optimizer, reduction, part_bytes, offloads] =
      plan.replication;
  if (replicas > 1) absl::StrAppend(&text, ",\n  \"replicas\": ", replicas);
  if (plan.tensor_parts > 1) {
    absl::StrAppend(&text, ",\n  \"tensor_parallel\": ", plan.tensor_parts);
  }
  if (blocks != replicas) absl::StrAppend(&text, ",\n  \"gradient_blocks\": ", blocks);
  if (shards_optimizer) absl::StrAppend(&text, ",\n  \"shard_optimizer\": true");
  if (reduction == ReductionKind::kRing) absl::StrAppend(&text, ",\n  \"reduction\": \"ring\"");
  if (replicas > 1 && part_bytes != kReductionPartBytes) {
    absl::StrAppend(&text, ",\n  \"reduction_part_bytes\": ", part_bytes);
  }
  AppendList("recomputed_layers", plan.recomputed, text);
  if (plan.offload > 0) {
    absl::StrAppend(&text, ",\n  \"offload\": ", nlohmann::json(plan.offload).dump());
  }
  if (offloads) absl::StrAppend(&text, ",\n  \"offload_optimizer\": true");
  AppendList("order", plan.order, text);
  if (!file.devices.empty()) {
    absl::StrAppend(&text, ",\n  \"devices\": [",
                    absl::StrJoin(file.devices, ", ",
                                  [](std::string* out, const std::string& name) {
                                    absl::StrAppend(out, Quoted(name));
                                  }),
                    "]");
  }
  if (chunks == 0) {
    std::string schedule = schedule::ToScheduleJson(plan.schedule);
    schedule.pop_back();  // the newline at its end
    absl::StrAppend(&text, ",\n  \"schedule\": ", absl::StrReplaceAll(schedule, {{"\n", "\n  "}}));
  }
  return absl::StrCat(text, "\n}\n");
}

absl::StatusOr<PlanFile> ReadPlanFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxPlanBytes));
  absl::StatusOr<PlanFile> file = ParsePlanJson(text);
  if (!file.ok()) return base::InFile(file.status(), path);
  return file;
}

absl::Status WritePlanFile(const std::string& path, const PlanFile& file) {
  RETURN_IF_ERROR(CheckTrains(file.plan.schedule));
  RETURN_IF_ERROR(base::Annotate(CheckPerformable(file.plan), path));
  return base::WriteFileAtomically(path, ToPlanJson(file));
}

}  // namespace stagecoach::partition
