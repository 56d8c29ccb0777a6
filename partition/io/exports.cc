#include "partition/io/exports.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "schedule/generators/generators.h"
#include "schedule/io/csv.h"
#include "schedule/ir/placement.h"
#include "schedule/transforms/lowering.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;

schedule::Schedule ComputeOf(schedule::Schedule schedule) {
  for (std::vector<schedule::Action>& list : schedule.actions) {
    std::erase_if(list, [](const schedule::Action& action) { return !IsCompute(action.op); });
  }
  return schedule;
}

absl::Status CheckNames(const Plan& plan, absl::Span<const std::string> layer_names) {
  if (static_cast<int>(layer_names.size()) == plan.num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("names of ", layer_names.size(), " layers for a plan of ", plan.num_layers));
}

// Checks what every program demands.
absl::Status CheckCanFollow(const Plan& plan, absl::string_view program) {
  RETURN_IF_ERROR(CheckPlan(plan));
  if (!std::is_sorted(plan.order.begin(), plan.order.end())) {
    return absl::InvalidArgumentError(absl::StrCat(
        program,
        " performs the layers as the model has them, but the plan takes them in another "
        "order"));
  }
  if (plan.moves_stashes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(program,
                     " does not move stashes to the host's memory, as the plan does: its "
                     "devices would need more memory; plan without --offload"));
  }
  if (plan.replication.offloads_optimizer) {
    return absl::InvalidArgumentError(
        absl::StrCat(program,
                     " does not keep the optimizer's state in the host's memory, as the plan does: "
                     "its devices would need more memory; plan without --offload-optimizer"));
  }
  return absl::OkStatus();
}

// ---- PyTorch ----

// Returns valid UTF-8, whatever the names are.
std::string Json(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// PyTorch allows anything except dots in a module's own name, but descriptions of a layer, like
// "node16 BatchNorm2d(64, eps=1e-05)", contain spaces or parentheses.
bool CanNameModule(absl::string_view name) {
  constexpr absl::string_view kDescriptive = " \t\n\r()[]{},;=\"'";
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  return name.find_first_of(kDescriptive) == absl::string_view::npos &&
         std::none_of(parts.begin(), parts.end(),
                      [](absl::string_view part) { return part.empty(); });
}

absl::StatusOr<nlohmann::json> ModulesOf(const std::vector<int>& layers, size_t from,
                                         absl::Span<const std::string> layer_names) {
  nlohmann::json names = nlohmann::json::array();
  for (size_t i = from; i < layers.size(); ++i) {
    const std::string& name = layer_names[static_cast<size_t>(layers[i])];
    if (!CanNameModule(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "PyTorch splits a model at modules, but layer ", layers[i], ", \"",
          absl::Utf8SafeCHexEscape(name),
          "\", cannot be the name of one: the names in the profile must be those that "
          "named_modules() gives (PipeDream's graphs do not have them; a profile of the model by "
          "python -m stagecoach_torch profile does)"));
    }
    names.push_back(name);
  }
  return names;
}

// ---- What programs perform ----

// Refuses plans whose ranks do not perform the program's own order: 1F1B, interleaved if there are
// chunks. Under another order neither times nor memory would be as predicted.
absl::Status CheckIsOneFOneB(const Plan& plan, absl::string_view program) {
  const int chunks = plan.num_stages() / plan.num_ranks();
  const std::string name = chunks > 1 ? "interleaved" : "1f1b";
  const absl::StatusOr<schedule::Schedule> own =
      schedule::Generate(name, {.ranks = plan.num_ranks(),
                                .micro_batches = plan.schedule.num_micro_batches,
                                .chunks = chunks});
  if (own.ok() && own->actions == ComputeOf(plan.schedule).actions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      program, " performs ", name, ", but the plan's order, ", plan.schedule.name,
      ", is another one, so what was predicted would not hold; plan with --schedule ", name));
}

// ---- Megatron-LM ----

bool HasAnyOf(absl::string_view name, absl::Span<const absl::string_view> words) {
  const std::string lower = absl::AsciiStrToLower(name);
  return std::any_of(words.begin(), words.end(),
                     [&lower](absl::string_view word) { return absl::StrContains(lower, word); });
}

std::string WithoutNumbers(absl::string_view name) {
  std::string rest;
  for (const char c : name) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) rest += c;
  }
  return rest;
}

// Returns "Et*3"; without its '|'.
std::string MegatronStage(const Plan& plan, int stage) {
  const bool is_first = stage == 0;
  const bool is_last = stage + 1 == plan.num_stages();
  const int count =
      plan.last(stage) - plan.first(stage) + 1 - (is_first ? 1 : 0) - (is_last ? 1 : 0);
  constexpr int kMaxSpelledOut = 2;
  std::string layers(static_cast<size_t>(std::min(count, kMaxSpelledOut)), 't');
  if (count > kMaxSpelledOut) layers = absl::StrCat("t*", count);
  return absl::StrCat(is_first ? "E" : "", layers, is_last ? "L" : "");
}

}  // namespace

absl::StatusOr<std::string> ToTorchPlanJson(const Plan& plan,
                                            absl::Span<const std::string> layer_names) {
  RETURN_IF_ERROR(CheckCanFollow(plan, "PyTorch"));
  RETURN_IF_ERROR(CheckNames(plan, layer_names));
  std::vector<int> rank_of_stage;
  for (const Rank rank : plan.schedule.rank_of_stage) rank_of_stage.push_back(rank.value());
  std::vector<std::string> lines;
  const auto add = [&lines](absl::string_view key, const nlohmann::json& value) {
    lines.push_back(absl::StrCat("  \"", key, "\": ", Json(value)));
  };
  ASSIGN_OR_RETURN(const nlohmann::json split_points, ModulesOf(plan.first_layer, 1, layer_names));
  add("split_points", split_points);
  add("stages", plan.num_stages());
  add("microbatches", plan.schedule.num_micro_batches);
  add("microbatch_rows", plan.micro_batch_rows);
  add("schedule", plan.schedule.name);
  add("rank_of_stage", rank_of_stage);
  if (plan.replicas() > 1) add("replicas", plan.replicas());
  if (!plan.recomputed.empty()) {
    ASSIGN_OR_RETURN(const nlohmann::json recomputed, ModulesOf(plan.recomputed, 0, layer_names));
    add("recomputed_layers", recomputed);
  }
  return absl::StrCat("{\n", absl::StrJoin(lines, ",\n"), "\n}\n");
}

absl::StatusOr<std::string> ToTorchScheduleCsv(const Plan& plan) {
  RETURN_IF_ERROR(CheckCanFollow(plan, "PyTorch"));
  RETURN_IF_ERROR(CheckPerformable(plan));
  return schedule::ToScheduleCsv(ComputeOf(plan.schedule));
}

absl::StatusOr<std::string> ToTorchLoweredCsv(const Plan& plan) {
  RETURN_IF_ERROR(CheckCanFollow(plan, "PyTorch"));
  RETURN_IF_ERROR(CheckPerformable(plan));
  const schedule::LoweringOptions options = {.reduce_gradients = true};
  schedule::Schedule lowered = plan.schedule;
  if (lowered.IsLowered()) {
    FitToRun(options, lowered);
  } else {
    ASSIGN_OR_RETURN(lowered, Lower(plan.schedule, options));
  }
  return schedule::ToScheduleCsv(lowered);
}

absl::StatusOr<std::string> ToDeepSpeedParts(const Plan& plan) {
  RETURN_IF_ERROR(CheckCanFollow(plan, "DeepSpeed"));
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const Rank rank = plan.schedule.rank_of(schedule::StageId(stage));
    if (rank.value() == stage) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "DeepSpeed has one stage per rank, stage i on rank i, but the plan has stage ", stage,
        " on rank ", rank.value(), "; plan with a schedule of one stage per rank, such as 1f1b"));
  }
  RETURN_IF_ERROR(CheckIsOneFOneB(plan, "DeepSpeed"));
  return absl::StrCat("[", absl::StrJoin(plan.first_layer, ", "), ", ", plan.num_layers, "]");
}

absl::Status CheckMegatronLayers(absl::Span<const std::string> names) {
  const auto refusal = [](absl::string_view which, const std::string& name,
                          absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("Megatron-LM has an embedding, equal transformer layers and a loss: ", which,
                     ", \"", name, "\", must ", expected));
  };
  if (names.size() < 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("Megatron-LM has an embedding, equal transformer layers and a loss; the model "
                     "has ",
                     names.size(), " layers"));
  }
  if (!HasAnyOf(names.front(), {"emb", "wte"})) {
    return refusal("the first layer", names.front(),
                   "be the embedding: have emb or wte in its name");
  }
  if (!HasAnyOf(names.back(), {"head", "logits", "loss", "output"})) {
    return refusal("the last layer", names.back(),
                   "be the loss: have head, logits, loss or output in its name");
  }
  for (size_t i = 2; i + 1 < names.size(); ++i) {
    if (WithoutNumbers(names[i]) == WithoutNumbers(names[1])) continue;
    return refusal(
        absl::StrCat("layer ", i), names[i],
        absl::StrCat("be named like layer 1, \"", names[1], "\", except for the number"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ToMegatronLayout(const Plan& plan,
                                             absl::Span<const std::string> layer_names) {
  RETURN_IF_ERROR(CheckCanFollow(plan, "Megatron-LM"));
  RETURN_IF_ERROR(CheckNames(plan, layer_names));
  RETURN_IF_ERROR(CheckMegatronLayers(layer_names));
  const int chunks = plan.num_stages() / plan.num_ranks();
  if (plan.schedule.rank_of_stage !=
      schedule::PlaceStages(schedule::Placement::kLoop, plan.num_ranks(), chunks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Megatron-LM places stages around the ranks, stage s on rank s mod ",
                     plan.num_ranks(), ", but the plan's schedule, ", plan.schedule.name,
                     ", places them differently; plan with 1f1b or interleaved"));
  }
  RETURN_IF_ERROR(CheckIsOneFOneB(plan, "Megatron-LM"));
  std::string layout;
  for (int stage = 0; stage < plan.num_stages();) {
    const std::string own = MegatronStage(plan, stage);
    int end = stage + 1;
    while (end < plan.num_stages() && MegatronStage(plan, end) == own) ++end;
    if (end - stage > 1) {  // never the last stage, since no other has a loss
      absl::StrAppend(&layout, "(", own, "|)*", end - stage, ",");
    } else {
      absl::StrAppend(&layout, own, end < plan.num_stages() ? "|" : "");
    }
    stage = end;
  }
  return layout;
}

}  // namespace stagecoach::partition
