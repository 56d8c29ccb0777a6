#include "tools/stagecoach/train/run_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/system/file.h"
#include "base/text/units.h"
#include "engine/runtime/stage/profile.h"
#include "partition/evaluate/evaluate_plan.h"
#include "schedule/render/html.h"
#include "schedule/render/line_plot.h"
#include "schedule/render/trace_style.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/train/run_events.h"

namespace stagecoach::tools {
namespace {

using schedule::EscapeMarkup;
using schedule::PlotLine;

constexpr absl::Duration kLeastInterval = absl::Seconds(5);
constexpr int kMostShareOfTime = 50;  // writing takes at most 1/50 of the time

constexpr char kRunStyle[] = R"css(
.plots{display:grid;gap:18px;grid-template-columns:repeat(auto-fit,minmax(min(330px,100%),1fr))}
.plots .picture{padding:10px 12px 8px}
.notes{margin:0;padding:12px 16px 14px 34px}
.notes li{overflow-wrap:anywhere}
.notes time{color:var(--mute);margin-right:8px;font-variant-numeric:tabular-nums}
.part{margin:8px 0 -8px}
.part .note{font-weight:400}
@media (min-width:561px) and (max-width:1119px){.tiles.run{grid-template-columns:repeat(3,minmax(0,1fr))}}
@media (min-width:1020px){.plots{grid-template-columns:repeat(2,minmax(0,1fr))}.plots svg{font-size:9.5px}}
)css";

std::string Count(int64_t count) { return base::FormatCount(count); }

std::string DescribeSpeed(double speed) {
  return speed >= 100 ? Count(std::llround(speed)) : absl::StrFormat("%.3g", speed);
}

std::string Short(double value) { return absl::StrFormat("%.4g", value); }

std::string TitleOf(const engine::RunConfig& config) {
  const std::string model = NameOfModel(config);
  return absl::StrCat(model == engine::kDefaultModel ? "the default network" : model, " on ",
                      DataOf(config));
}

std::vector<engine::DeviceReport> Predicted(const engine::PreparedRun& run) {
  std::vector<engine::DeviceReport> devices;
  for (int device = 0; device < run.plan().num_devices(); ++device) {
    const partition::RankReport& rank =
        run.compiled.of(schedule::Rank(device / run.plan().devices_of_rank()));
    devices.push_back(
        {.device = absl::StrCat("device ", device), .predicted_peak_bytes = rank.peak_bytes()});
  }
  return devices;
}

// The plan's part of the page, as `plan --html` draws it.
partition::PageParts PlanOf(const engine::PreparedRun& run) {
  const absl::StatusOr<partition::PlanEvaluation> evaluation =
      partition::EvaluatePlan(run.plan(), engine::JoinProfiles("", {run.profile}),
                              run.device.ClusterOf(run.plan().num_devices()));
  return evaluation.ok() ? partition::PagePartsOf(*evaluation) : partition::PageParts();
}

std::string TileOf(absl::string_view label, const std::string& value, const std::string& note) {
  return absl::StrCat("<div><dt>", label, "</dt><dd>", EscapeMarkup(value), "<small>",
                      EscapeMarkup(note), "</small></dd></div>");
}

std::string CardOf(absl::string_view title, absl::string_view more, const std::string& content) {
  return absl::StrCat("<section class=\"card\"><div class=\"head\"><h2>", title, "</h2>", more,
                      "</div>", content, "</section>\n");
}

std::string PlotCard(absl::string_view title, const std::vector<PlotLine>& lines,
                     const std::function<std::string(double)>& format) {
  const std::string plot = schedule::LinePlot(lines, "step", format);
  if (plot.empty()) return "";
  return CardOf(title, lines.size() > 1 ? schedule::PlotLegend(lines) : "", plot);
}

std::string RowOf(const std::vector<std::string>& cells, absl::string_view tag) {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&row, "<", tag, i < 1 ? " class=\"left\">" : ">", EscapeMarkup(cells[i]), "</",
                    tag, ">");
  }
  return row + "</tr>";
}

}  // namespace

RunPage::RunPage(Options options, const engine::RunConfig& config, const engine::TrainingRun& run)
    : options_(std::move(options)),
      title_(TitleOf(config)),
      replicas_(run.prepared.plan().replicas()),
      devices_(Predicted(run.prepared)),
      plan_(PlanOf(run.prepared)) {
  if (!options_.metrics.empty()) history_.Read(options_.metrics).IgnoreError();
  Write();
}

void RunPage::Step(const engine::FitProgress& progress) {
  const engine::StepResult& result = progress.step_result;
  const bool is_skipped = !result.skipped_for.empty();
  const double per_sample =
      options_.measures.tokens > 0 ? static_cast<double>(options_.measures.tokens) : 1.0;
  history_.AddStep(progress.run_step, is_skipped ? std::nan("") : result.loss,
                   static_cast<double>(result.learning_rate),
                   progress.samples_per_second * per_sample);
  if (is_skipped) {
    Note(absl::StrCat("step ", Count(progress.run_step), " is skipped: ", result.skipped_for));
  }
  if (absl::Now() - written_ >= std::max(kLeastInterval, kMostShareOfTime * took_)) Write();
}

void RunPage::Epoch(const engine::EpochResult& result) {
  history_.Add(EvaluationEvent("epoch", result, options_.measures));
  Write();
}

void RunPage::Evaluation(const engine::EpochResult& result) {
  history_.Add(EvaluationEvent("evaluation", result, options_.measures));
  Write();
}

void RunPage::Note(const std::string& text) { notes_.emplace_back(absl::Now(), text); }

void RunPage::Saved(const std::string& checkpoint, int64_t bytes) {
  saved_ = absl::StrCat(checkpoint, " (", base::FormatBytes(bytes), ")");
}

void RunPage::End(const engine::TrainingOutcome& outcome) {
  devices_ = outcome.devices;
  state_ = absl::StrCat(outcome.fit.stopped ? "stopped by a signal after " : "trained in ",
                        base::FormatDuration(outcome.elapsed), ", of which evaluations took ",
                        base::FormatDuration(outcome.fit.evaluation));
  is_over_ = true;
  Write();
}

void RunPage::Fail(const absl::Status& error) {
  if (is_over_) return;
  state_ = "ended with an error";
  Note(std::string(error.message()));
  is_over_ = true;
  Write();
}

std::string RunPage::Tiles() const {
  const auto last = [](const RunHistory::Points& points) {
    return points.empty() ? std::nan("") : points.back().second;
  };
  const auto known = [](double value, const std::string& text) {
    return std::isfinite(value) ? text : "\xE2\x80\x93";
  };
  const RunHistory& history = history_;
  const double loss = last(history.losses()), speed = last(history.speeds()),
               rate = last(history.learning_rates());
  std::string tiles =
      TileOf("steps", Count(history.last_step()), absl::StrCat("of ", Count(options_.steps)));
  tiles += TileOf("training loss", known(loss, Short(loss)), "of the last steps");
  if (options_.measures.has_rmse()) {
    const double rmse = last(history.Evaluated("test_rmse"));
    tiles += TileOf("test RMSE", known(rmse, Short(rmse)), "of the last evaluation");
  } else {
    const double accuracy = last(history.Evaluated("test_accuracy"));
    tiles += TileOf("test accuracy", known(accuracy, base::FormatPercent(accuracy, 2)),
                    "of the last evaluation");
  }
  const double test_loss = last(history.Evaluated("test_loss"));
  tiles += TileOf("test loss", known(test_loss, Short(test_loss)), "of the last evaluation");
  tiles += TileOf("speed", known(speed, DescribeSpeed(speed)),
                  options_.measures.tokens > 0 ? "tokens/s" : "samples/s");
  tiles += TileOf("learning rate", known(rate, Short(rate)), "now");
  return absl::StrCat("<dl class=\"card tiles run\">", tiles, "</dl>\n");
}

std::string RunPage::Plots() const {
  const auto percent = [](double share) { return base::FormatPercent(share, 1); };
  std::string plots = PlotCard("Loss",
                               {{"training", history_.losses()},
                                {"test", history_.Evaluated("test_loss"), /*has_dots=*/true}},
                               Short);
  if (options_.measures.has_rmse()) {
    plots += PlotCard("RMSE",
                      {{"training", history_.Evaluated("train_rmse"), true},
                       {"test", history_.Evaluated("test_rmse"), true}},
                      Short);
  } else {
    plots += PlotCard("Accuracy",
                      {{"training", history_.Evaluated("train_accuracy"), true},
                       {"test", history_.Evaluated("test_accuracy"), true}},
                      percent);
  }
  plots += PlotCard("Learning rate", {{"learning rate", history_.learning_rates()}}, Short);
  plots += PlotCard(options_.measures.tokens > 0 ? "Tokens per second" : "Samples per second",
                    {{"speed", history_.speeds()}}, DescribeSpeed);
  return plots.empty() ? "" : absl::StrCat("<div class=\"plots\">", plots, "</div>\n");
}

std::string RunPage::Devices() const {
  std::string rows;
  const bool is_measured = is_over_ && devices_.front().measured_peak_bytes > 0;
  for (const engine::DeviceReport& device : devices_) {
    std::vector<std::string> cells = {device.device,
                                      base::FormatBytes(device.predicted_peak_bytes)};
    if (is_measured) {
      for (const std::string& cell :
           {base::FormatBytes(device.measured_peak_bytes),
            base::FormatBytes(device.measured_stash_bytes), base::FormatPercent(device.busy)}) {
        cells.push_back(cell);
      }
    } else {
      cells.insert(cells.end(), 3, "at the end");
    }
    rows += RowOf(cells, "td");
  }
  return CardOf(
      "Memory, predicted and measured",
      replicas_ > 1 ? absl::StrCat("<span class=\"note\">", replicas_, " replicas</span>") : "",
      absl::StrCat(
          "<div class=\"scroll\"><table><thead>",
          RowOf({"device", "predicted peak", "measured peak", "measured stash", "busy"}, "th"),
          "</thead><tbody>", rows, "</tbody></table></div>"));
}

std::string RunPage::Notes() const {
  if (notes_.empty()) return "";
  constexpr size_t kMostShown = 200;
  const size_t first = notes_.size() - std::min(notes_.size(), kMostShown);
  std::string items;
  for (size_t i = first; i < notes_.size(); ++i) {
    absl::StrAppend(&items, "<li><time>",
                    absl::FormatTime("%F %T", notes_[i].first, absl::LocalTimeZone()), "</time>",
                    EscapeMarkup(notes_[i].second), "</li>");
  }
  const std::string left_out =
      first == 0 ? "" : absl::StrCat("<span class=\"note\">the last ", kMostShown, "</span>");
  return CardOf("Notes", left_out, absl::StrCat("<ul class=\"notes\">", items, "</ul>"));
}

std::string RunPage::ToHtml() const {
  const std::string written = absl::FormatTime("%F %T", absl::Now(), absl::LocalTimeZone());
  const std::string plan =
      plan_.memory.empty()
          ? ""
          : absl::StrCat(
                "<h2 class=\"part\">Plan <span class=\"note\">as predicted before the "
                "run</span></h2>\n",
                plan_.tiles, plan_.memory, plan_.details);
  return schedule::HtmlDocument(
      title_,
      absl::StrCat(plan_.style, "<style>", schedule::kPlotStyle, kRunStyle, "</style>\n",
                   is_over_ ? "" : "<meta http-equiv=\"refresh\" content=\"30\">\n"),
      absl::StrCat("<header><h1>", EscapeMarkup(title_), "</h1><p>", EscapeMarkup(state_), "; ",
                   is_over_ ? "written " : "this page of ", written,
                   is_over_ ? "" : " renews itself every 30 s",
                   saved_.empty() ? "" : absl::StrCat("; saved as ", EscapeMarkup(saved_)),
                   "</p></header>\n<main>\n", Tiles(), Plots(), Devices(), Notes(), plan,
                   "</main>\n", plan_.script));
}

void RunPage::Write() {
  // A stream gets the page once.
  if (!status_.ok() || (!is_over_ && base::IsStream(options_.path))) return;
  const absl::Time begin = absl::Now();
  status_ = base::WriteFileAtomically(options_.path, ToHtml());
  written_ = absl::Now();
  took_ = written_ - begin;
  if (!status_.ok()) {
    PrintNotice(absl::StrCat("the run continues, but without its page: ", status_.message()));
  }
}

}  // namespace stagecoach::tools
