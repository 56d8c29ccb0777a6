#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "partition/report/evaluation_parts.h"
#include "partition/report/evaluation_report.h"

namespace stagecoach::partition {
namespace {

using Align = base::TextTable::Align;
using schedule::Rank;
using schedule::StageId;

constexpr size_t kColumns = base::TextTable::kPageColumns;
constexpr size_t kLabelColumns = 14;
constexpr size_t kNameColumns = 10;  // for a device in a table
constexpr size_t kListColumns = 10;  // for a rank's stages

// Names come from files: no control sequence may reach the terminal.
std::string Printable(std::string name) {
  for (char& byte : name) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(byte))) byte = '?';
  }
  return name;
}

// Appends "label        text", broken between words, or within one that is too long.
void AppendLabeled(absl::string_view label, absl::string_view text, std::string& page) {
  constexpr size_t kRoom = kColumns - kLabelColumns;
  std::string line(label);
  line.resize(kLabelColumns, ' ');
  size_t used = 0;
  const auto add = [&](absl::string_view word) {
    if (used > 0 && used + 1 + base::Width(word) > kRoom) {
      absl::StrAppend(&page, line, "\n");
      line.assign(kLabelColumns, ' ');
      used = 0;
    }
    absl::StrAppend(&line, used > 0 ? " " : "", word);
    used += (used > 0 ? 1 : 0) + base::Width(word);
  };
  std::vector<std::string> words;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    const bool is_unit = word[0] == '%' && !words.empty();  // stays with its number
    if (!is_unit) words.emplace_back();
    absl::StrAppend(&words.back(), is_unit ? " " : "", word);
  }
  for (absl::string_view word : words) {
    while (!word.empty()) {
      const auto [start, rest] = base::SplitAt(word, kRoom);
      add(start);
      word = rest;
    }
  }
  absl::StrAppend(&page, line, "\n");
}

void AppendObjective(const PlanEvaluation& evaluation, std::string& page) {
  std::string bound;
  if (evaluation.considered > 0) {
    bound = absl::StrCat("; lower bound ", Headline(evaluation.lower_bound_ns), ", gap ",
                         base::FormatPercent(evaluation.gap()));
  }
  const std::string step = Headline(static_cast<double>(evaluation.simulation.step_ns));
  if (evaluation.objective == PlanObjective::kStep) {
    AppendLabeled("step", absl::StrCat(step, bound), page);
    return;
  }
  AppendLabeled(
      "bottleneck",
      absl::StrCat(Headline(evaluation.objective_ns), " per step of the busiest rank", bound),
      page);
  AppendLabeled("step", step, page);
}

std::string StageTable(const PlanEvaluation& evaluation) {
  const schedule::TimeUnit unit = schedule::UnitFor(evaluation.simulation.step_ns);
  base::TextTable table({{"stage", Align::kRight},
                         {"device", Align::kLeft},
                         {"layers", Align::kLeft},
                         {"forward", Align::kRight},
                         {"backward", Align::kRight},
                         {"update", Align::kRight},
                         {"receive", Align::kRight},
                         {"send", Align::kRight},
                         {"in flight", Align::kRight},
                         {"idle", Align::kRight}});
  for (size_t i = 0; i < evaluation.stages.size(); ++i) {
    const StageCost& stage = evaluation.stages[i];
    const StageReport& report = evaluation.compiled.stages[i];
    table.AddRow({absl::StrCat(i),
                  base::ElidedInMiddle(Printable(DevicesOf(evaluation, report.rank)), kNameColumns),
                  absl::StrCat(report.first_layer, "-", report.last_layer),
                  InUnit(stage.forward_ns, unit), InUnit(stage.backward_ns, unit),
                  InUnit(stage.update_ns, unit), InUnit(stage.receive_ns, unit),
                  InUnit(stage.send_ns, unit), absl::StrCat(stage.in_flight),
                  base::FormatPercent(stage.idle_share)});
  }
  return absl::StrCat("times in ", unit.name, ", of one micro-batch; the update once per step\n\n",
                      table.ToString(kColumns));
}

std::string MemoryTable(const PlanEvaluation& evaluation) {
  base::TextTable table({{"device", Align::kLeft},
                         {"stages", Align::kLeft},
                         {"weights", Align::kRight},
                         {"gradients", Align::kRight},
                         {"optimizer", Align::kRight},
                         {"stash", Align::kRight},
                         {"buffers", Align::kRight},
                         {"peak", Align::kRight},
                         {"limit", Align::kRight}});
  for (Rank rank(0); rank.value() < evaluation.plan().num_ranks(); ++rank) {
    const RankMemory memory = MemoryOf(evaluation, rank);
    table.AddRow({base::ElidedInMiddle(Printable(DevicesOf(evaluation, rank)), kNameColumns),
                  base::ElidedInMiddle(StagesOf(evaluation, rank), kListColumns),
                  base::FormatBytes(memory.parameters), base::FormatBytes(memory.gradients),
                  base::FormatBytes(memory.optimizer), base::FormatBytes(memory.stash),
                  base::FormatBytes(memory.buffers), base::FormatBytes(memory.peak),
                  memory.limit > 0 ? base::FormatBytes(memory.limit) : "none"});
  }
  return table.ToString(kColumns);
}

void AppendWhy(const PlanEvaluation& evaluation, std::string& page) {
  if (evaluation.runner_up.has_value()) {
    AppendLabeled("runner-up", RunnerUp(evaluation), page);
    AppendLabeled("", evaluation.runner_up_reason, page);
  }
  if (!evaluation.left_out.empty()) AppendLabeled("left out", Printable(LeftOut(evaluation)), page);
  absl::string_view label = "would change";
  for (const std::string& change : evaluation.changes) {
    AppendLabeled(label, Printable(change), page);
    label = "";
  }
  if (evaluation.considered > 0) AppendLabeled("planned in", Effort(evaluation), page);
}

}  // namespace

std::string ToText(const PlanEvaluation& evaluation) {
  std::string page;
  if (!evaluation.model.empty()) AppendLabeled("model", Printable(evaluation.model), page);
  AppendLabeled("plan", evaluation.choice.ToString(), page);
  const std::string transfers = GroupedTransfers(evaluation);
  if (!transfers.empty()) AppendLabeled("transfers", transfers, page);
  AppendObjective(evaluation, page);
  if (!evaluation.plan().recomputed.empty()) {
    AppendLabeled("recomputes", absl::StrCat("layers ", Ranges(evaluation.plan().recomputed)),
                  page);
  }
  if (MostHostBytes(evaluation.compiled) > 0) AppendLabeled("offloads", Offloads(evaluation), page);
  absl::StrAppend(&page, "\n", StageTable(evaluation), "\n", MemoryTable(evaluation));
  std::string why;
  AppendWhy(evaluation, why);
  return why.empty() ? page : absl::StrCat(page, "\n", why);
}

}  // namespace stagecoach::partition
