#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/session/training.h"
#include "tools/stagecoach/terminal/bars.h"
#include "tools/stagecoach/terminal/explanation.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/train/epoch_table.h"
#include "tools/stagecoach/train/report.h"

namespace stagecoach::tools {
namespace {

using Align = base::TextTable::Align;

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);

std::string Counted(int64_t count, absl::string_view one, absl::string_view many) {
  return absl::StrCat(base::FormatCount(count), " ", count == 1 ? one : many);
}

// Returns what the device did, without its stage.
std::vector<std::string> MeasuredCells(const engine::DeviceReport& device) {
  return {base::FormatBytes(device.measured_peak_bytes),
          base::FormatBytes(device.predicted_peak_bytes), absl::StrCat(device.peak_stashed),
          base::FormatBytes(device.measured_stash_bytes), base::FormatPercent(device.busy)};
}

std::string DeviceTable(const partition::CompiledPlan& plan,
                        const std::vector<engine::DeviceReport>& devices) {
  const std::vector<base::TextTable::Column> columns = {
      {"device", Align::kLeft},      {"stage", Align::kRight}, {"layers", Align::kLeft},
      {"parameters", Align::kRight}, {"peak", Align::kRight},  {"predicted", Align::kRight},
      {"stashed", Align::kRight},    {"stash", Align::kRight}, {"busy", Align::kRight}};
  base::TextTable table(columns);
  const size_t replicas = devices.size() / plan.ranks.size();
  for (size_t device_index = 0; device_index < devices.size(); ++device_index) {
    const engine::DeviceReport& device = devices[device_index];
    const std::vector<std::string> measured = MeasuredCells(device);
    const std::vector<schedule::StageId>& ids = plan.ranks[device_index / replicas].stages;
    for (const schedule::StageId id : ids) {
      const partition::StageReport& stage = plan.of(id);
      const bool is_first = id == ids.front();
      std::vector<std::string> cells = {is_first ? device.device : "", absl::StrCat(id.value()),
                                        absl::StrCat(stage.first_layer, "-", stage.last_layer),
                                        base::FormatCount(stage.parameters)};
      if (is_first) cells.insert(cells.end(), measured.begin(), measured.end());
      cells.resize(columns.size());
      table.AddRow(std::move(cells));
    }
  }
  return table.ToString(base::TextTable::kPageColumns);
}

// Returns a line with the most memory that a device used; "": one used another amount than
// predicted, or none did any work.
std::string MemoryAsPredicted(const std::vector<engine::DeviceReport>& devices) {
  int64_t most = 0;
  int64_t most_of_host = 0;
  for (const engine::DeviceReport& device : devices) {
    if (device.measured_peak_bytes != device.predicted_peak_bytes ||
        device.measured_host_bytes != device.predicted_host_bytes) {
      return "";
    }
    most = std::max(most, device.measured_peak_bytes);
    most_of_host = std::max(most_of_host, device.measured_host_bytes);
  }
  if (most == 0) return "";
  return absl::StrCat(
      "memory as predicted: ", devices.size() > 1 ? "at most " : "", base::FormatBytes(most),
      devices.size() > 1 ? " per device" : "",
      most_of_host > 0 ? absl::StrCat(", and ", base::FormatBytes(most_of_host), " of the host's")
                       : "",
      "\n");
}

// Returns how much of the GPUs is in use, with a blank line; "" if there are none.
std::string AcceleratorTable(const std::vector<engine::DeviceReport>& devices) {
  base::TextTable table({{"memory of the GPU", Align::kLeft},
                         {"allocated", Align::kRight},
                         {"context", Align::kRight},
                         {"libraries", Align::kRight}});
  bool has_rows = false;
  for (const engine::DeviceReport& device : devices) {
    const kernels::AcceleratorMemory& memory = device.accelerator;
    if (memory == kernels::AcceleratorMemory()) continue;
    has_rows = true;
    table.AddRow({device.device, base::FormatBytes(memory.allocated_bytes),
                  base::FormatBytes(memory.context_bytes),
                  base::FormatBytes(memory.library_bytes)});
  }
  return has_rows ? table.ToString(base::TextTable::kPageColumns) + "\n" : "";
}

// Returns a line with the speed of the last epoch; "": it is not known.
std::string DescribeSpeed(const engine::TrainingRun& run, double samples_per_second,
                          bool finds_peak) {
  if (samples_per_second <= 0) return "";
  const Speed speed = Speed::Of(run, samples_per_second, finds_peak);
  std::string line = absl::StrFormat("speed: %.4g samples/s per device",
                                     samples_per_second / static_cast<double>(speed.devices));
  if (speed.flops_per_second > 0) {
    absl::StrAppendFormat(&line, ", %.4g GFLOP/s in all", speed.flops_per_second * 1e-9);
  }
  if (speed.mfu > 0) {
    absl::StrAppend(&line, ", ", base::FormatPercent(speed.mfu),
                    " of the most that matrix products reach here (MFU)");
  }
  return absl::StrCat(line, "\n");
}

// Returns a line for each device that did not issue all work as graphs; "" if there is none.
std::string DescribePlainIssues(const std::vector<engine::DeviceReport>& devices) {
  std::string lines;
  for (const engine::DeviceReport& device : devices) {
    if (device.plain_issues == 0) continue;
    absl::StrAppend(&lines, device.device, ": ", base::FormatCount(device.plain_issues), " of ",
                    Counted(device.plain_issues + device.graph_issues, "action", "actions"),
                    " took more than one call, for want of a CUDA graph: ", device.why_plain, "\n");
  }
  return lines;
}

// Returns how many of the positions have an answer, such as those of conversations; "": all.
std::string DescribeLearned(const engine::Dataset& train) {
  int64_t learned = 0;
  for (int64_t row = 0; row < train.rows(); ++row) learned += train.AnswersOf(row);
  const int64_t all = train.rows() * train.spec().target.answers();
  if (learned == all) return "";
  return absl::StrFormat(", of which %s (%.1f %%) are learned", base::FormatCount(learned),
                         100.0 * static_cast<double>(learned) / static_cast<double>(all));
}

std::string DescribeData(const engine::TrainTest& data, const Measures& measures) {
  const engine::Dataset& train = *data.train;
  const auto counts = [&](absl::string_view rows) {
    return absl::StrCat(base::FormatCount(train.rows()), rows, " to train on",
                        DescribeLearned(train), ", ", base::FormatCount(data.test->rows()),
                        " to test; ");
  };
  if (measures.tokens > 0) {
    const std::string tokens = Counted(measures.tokens, "token", "tokens");
    return absl::StrCat(counts(absl::StrCat(" rows of ", tokens)), "a vocabulary of ",
                        base::FormatCount(train.spec().inputs.front().vocabulary));
  }
  const int64_t numbers = train.spec().target.shape.elements();
  return absl::StrCat(counts(" rows"), Counted(train.features(), "feature", "features"), ", ",
                      !measures.has_rmse() ? Counted(train.classes(), "class", "classes")
                      : numbers == 1       ? "a number to predict"
                                           : absl::StrCat(numbers, " numbers to predict"));
}

// "1,234 parameters", and how many of them are trained unless all are.
std::string DescribeParameters(const engine::ParameterTable& parameters) {
  int64_t all = 0, trained = 0;
  bool has_frozen = false, has_adapters = false, has_whole = false;
  for (const engine::ModelParameter& parameter : parameters.all()) {
    if (parameter.is_copy() || parameter.update.is_average()) continue;
    all += parameter.shape.elements();
    has_frozen = has_frozen || parameter.update.is_frozen();
    has_adapters = has_adapters || parameter.is_adapter;
    has_whole = has_whole || parameter.is_trained_base;
    if (!parameter.update.is_frozen()) trained += parameter.shape.elements();
  }
  if (!has_frozen) return absl::StrCat(base::FormatCount(all), " parameters");
  return absl::StrFormat("%s parameters, of which %s (%.2f %%) are trained%s%s",
                         base::FormatCount(all), base::FormatCount(trained),
                         100.0 * static_cast<double>(trained) / static_cast<double>(all),
                         has_adapters ? ", those of adapters" : "",
                         has_adapters && has_whole ? " and of whole layers" : "");
}

// Says how many parameters each of their groups has, on a line of its own.
std::string DescribeGroups(const engine::PreparedRun& run) {
  const engine::Model& model = run.model;
  const std::vector<int> counts =
      engine::ParameterRules(model.parameter_rules, model.ties).CountsIn(run.profile.parameters);
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    absl::StrAppend(&text, "\n       group ",
                    engine::ParameterRulesText({model.parameter_rules[i]}), " has ",
                    Counted(counts[i], "tensor", "tensors"));
  }
  return text;
}

// Says what the model is if the data chose it; "": a name says it, or it is the network for
// numbers.
std::string DescribeDefault(const engine::RunConfig& config, const Measures& measures) {
  if (measures.tokens == 0 || NameOfModel(config) != engine::kDefaultModel) return "";
  const engine::NetworkSize size = NetworkSizeOf(config, 0);
  return absl::StrCat("\n       a small GPT of ", Counted(size.layers, "block", "blocks"),
                      " of width ", size.width, "; --model names another");
}

// The plan of each device in a table, after a blank line.
std::string DevicesTable(const engine::TrainingRun& run) {
  const bool has_replicas = run.prepared.plan().replication.is_needed();
  return absl::StrCat(has_replicas ? "\nEach replica:\n" : "\n", PlanTable(run.prepared.compiled));
}

int64_t MostMemory(const partition::CompiledPlan& plan) {
  int64_t most = 0;
  for (const partition::RankReport& rank : plan.ranks) most = std::max(most, rank.peak_bytes());
  return most;
}

// Returns " on fast.0, fast.1, slow.0" of devices that are described.
std::string DescribeDevices(const engine::PreparedRun& run) {
  constexpr int kMostNamed = 8;
  if (run.device.are_alike()) return "";
  const partition::Cluster cluster = run.device.ClusterOf(run.plan().num_devices());
  std::vector<std::string> names;
  for (const partition::ClusterDevice& device : cluster.devices) names.push_back(device.name);
  if (cluster.size() > kMostNamed) return absl::StrCat(" on ", names.front(), " to ", names.back());
  return absl::StrCat(" on ", absl::StrJoin(names, ", "));
}

// Data, model and plan in a few lines.
std::string DescribeRun(const engine::RunConfig& config, const engine::TrainingRun& run,
                        const Measures& measures, bool is_verbose) {
  const partition::Plan& plan = run.prepared.plan();
  const int blocks = plan.replication.gradient_blocks;
  const int64_t host_bytes = MostHostBytes(run.prepared.compiled);
  const int64_t left_over = is_verbose ? run.rows_left_over() : 0;
  return absl::StrCat(
      "data   ", DescribeData(run.data, measures),
      left_over == 0
          ? ""
          : absl::StrCat("\n       each epoch leaves out ", Counted(left_over, "row", "rows"),
                         left_over == 1 ? ", which makes no batch: another one each time"
                                        : ", which make no whole batch: others each time"),
      "\nmodel  ", Counted(run.prepared.model.num_layers(), "layer", "layers"), ", ",
      DescribeParameters(run.prepared.profile.parameters), DescribeDefault(config, measures),
      DescribeGroups(run.prepared), "\nplan   ", plan.schedule.name, " over ",
      Counted(plan.num_stages(), "stage", "stages"),
      plan.replication.is_needed() ? absl::StrCat(", ", plan.replicas(), " replicas") : "",
      plan.tensor_parts > 1
          ? absl::StrCat(", each on ", plan.tensor_parts, " devices that share its layers")
          : "",
      plan.replication.shards_optimizer ? " that share the optimizer's state" : "",
      plan.replication.reduction == partition::ReductionKind::kRing
          ? " that sum in a ring (the results depend on their number)"
          : "",
      DescribeDevices(run.prepared), "; a batch is ",
      Counted(plan.micro_batches(), "micro-batch", "micro-batches"), " of ",
      Counted(plan.micro_batch_rows, "row", "rows"), "; at most ",
      base::FormatBytes(MostMemory(run.prepared.compiled)), " per device",
      blocks > 1 ? absl::StrCat(" in ", blocks, " gradient blocks") : "",
      plan.recomputed.empty() ? ""
                              : absl::StrCat("; ",
                                             Counted(std::ssize(plan.recomputed),
                                                     "layer repeats its", "layers repeat their"),
                                             " forward pass to save memory"),
      host_bytes > 0 ? absl::StrCat("; up to ", base::FormatBytes(host_bytes),
                                    " of host memory per device for ", DescribeHostContents(plan))
                     : "",
      run.prepared.choice.empty() ? "" : absl::StrCat("\n       ", run.prepared.choice), "\n",
      is_verbose ? DevicesTable(run) : "");
}

std::string DescribeStep(const Explanation& explanation) {
  base::TextTable table({{"step"}, {"shapes"}, {"what happens"}});
  for (const Explanation::Row& row : explanation.rows) {
    table.AddRow({row.step, row.shapes, row.note});
  }
  return absl::StrCat(explanation.summary, "\n\n", table.ToString());
}

// Whether the run has met its condition.
std::string DescribeStop(const engine::TrainingOutcome& outcome) {
  const engine::StopCondition& condition = *outcome.stop_when;
  const std::optional<engine::Metrics>& metrics = outcome.fit.metrics;
  return absl::StrCat(
      "--stop-when ", condition.text, outcome.fit.condition_met ? " is met" : " is not met",
      metrics.has_value() ? absl::StrFormat(": it is %.4f", condition.ValueIn(*metrics)) : "");
}

// Why a run has ended early.
std::string DescribePatience(const engine::FitResult& fit) {
  const bool rises = engine::MetricOf(fit.best_by).larger_is_better;
  const std::string bound =
      fit.best.has_value() ? absl::StrFormat(" %s %.4f", rises ? "above" : "below", *fit.best) : "";
  return absl::StrCat(
      "stopped early: ", Counted(fit.evaluations_since_best, "evaluation", "evaluations in a row"),
      " did not ", rises ? "raise" : "lower", " the ", engine::DescribeMetric(fit.best_by), bound);
}

// A word of a command, as a shell reads it.
std::string Quoted(const std::string& word) {
  const bool is_plain = absl::c_all_of(word, [](unsigned char letter) {
    return absl::ascii_isalnum(letter) || absl::StrContains("_-./+:,=@%", letter);
  });
  return is_plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// The command that uses what was trained: those who trained it can copy it.
std::string UseOf(const engine::RunConfig& config, const engine::DataEncoding& encoding,
                  const Measures& measures) {
  const std::string folder = Quoted(config.checkpoints);
  const bool has_text = encoding.tokens_are_bytes || !encoding.tokenizer.empty();
  if (!measures.has_perplexity || !has_text) {
    return absl::StrCat("predict: stagecoach predict --checkpoint ", folder);
  }
  return absl::StrCat("generate: stagecoach generate --checkpoint ", folder,
                      engine::HoldsChats(DataOf(config)) ? " --chat" : " --prompt", " \"...\"");
}

class TextReport final : public engine::TrainingObserver {
 public:
  TextReport(int epochs, const ReportOptions& options) : epochs_(epochs), options_(options) {}
  ~TextReport() override { RedrawLine(""); }  // An error would otherwise follow it.

  absl::Status Start(const engine::RunConfig& config, const engine::TrainingRun& run) override {
    const double guessing = run.prepared.profile.loss_spec.loss_of_guessing;
    measures_ = Measures::Of(*run.data.train, run.prepared.profile.loss_spec, run.data.encoding);
    finds_peak_ = !config.is_process();
    use_ = UseOf(config, run.data.encoding, measures_);
    absl::PrintF("%s\n",
                 base::EscapeControls(DescribeRun(config, run, measures_, options_.is_verbose)));
    if (options_.explains)
      absl::PrintF("%s\n", base::EscapeControls(DescribeStep(ExplainStep(run.prepared))));
    const int columns = TerminalColumns();
    table_.emplace(measures_, guessing > 0.0 ? guessing : 1.0,
                   columns == 0 ? base::TextTable::kPageColumns : columns,
                   engine::EvaluatedMetrics(config));
    absl::PrintF("%s", table_->Header());
    RedrawLine("preparing the devices");
    std::fflush(stdout);
    return absl::OkStatus();
  }

  void Step(const engine::FitProgress& progress) override {
    if (!progress.step_result.skipped_for.empty()) {
      RedrawLine("");
      absl::PrintF("       skipped step %s of epoch %d: %s\n", base::FormatCount(progress.step),
                   progress.epoch, progress.step_result.skipped_for);
    }
    if (options_.Logs(progress.run_step)) PrintStep(progress);
    const absl::Time now = absl::Now();
    if (TerminalColumns() == 0) {
      if (options_.log_every_steps > 0 || !pace_.IsDue(progress, now)) return;
      absl::PrintF("       %s\n", PlainProgress(progress, epochs_, measures_.tokens));
      std::fflush(stdout);
      return;
    }
    if (now - drawn_ < kRedrawInterval && progress.step < progress.steps) return;
    drawn_ = now;
    // The last column stays empty: a cursor after it would be on the next line.
    RedrawLine(ProgressLine(progress, epochs_, TerminalColumns() - 1, measures_.tokens));
  }

  void Epoch(const engine::EpochResult& result) override {
    PrintRow(absl::StrCat(result.epoch), result);
  }

  void Evaluation(const engine::EpochResult& result) override {
    PrintRow(absl::StrFormat("%.2f", result.epoch - 1 + result.share), result);
  }

  void Answers(const engine::EpochResult& /*result*/,
               const std::vector<engine::SampledAnswer>& answers) override {
    RedrawLine("");
    for (size_t i = 0; i < answers.size(); ++i) {
      const engine::SampledAnswer& answer = answers[i];
      absl::PrintF("       answer %d: %s%s\n", i + 1, base::EscapeControls(answer.text),
                   answer.is_complete ? "" : " ...");
    }
    std::fflush(stdout);
  }

  void Resumed(const engine::RestoredCheckpoint& checkpoint) override {
    RedrawLine("");
    const engine::DataPosition& position = checkpoint.manifest.position;
    absl::PrintF("       resumes after step %s, in epoch %d: %s\n",
                 base::FormatCount(checkpoint.manifest.step), position.epoch, checkpoint.path);
    std::fflush(stdout);
  }

  void OnRecovered(int64_t steps, int epoch) override {
    RedrawLine("");
    absl::PrintF("       resumes after step %s, in epoch %d: with what other replicas have\n",
                 base::FormatCount(steps), epoch);
    std::fflush(stdout);
  }

  void Saved(const engine::SaveReport& save) override {
    if (save.path.ok()) saved_ = *save.path;
    RedrawLine("");  // An error is printed next; progress is drawn again with the next step.
  }

  void End(const engine::TrainingRun& run, const engine::TrainingOutcome& outcome) override {
    RedrawLine("");
    const std::string memory = options_.is_verbose ? "" : MemoryAsPredicted(outcome.devices);
    if (memory.empty()) {
      absl::PrintF("\n%s", DeviceTable(run.prepared.compiled, outcome.devices));
    }
    absl::PrintF("\n%s", memory);
    if (options_.is_verbose) {
      absl::PrintF("%s", AcceleratorTable(outcome.devices));
      absl::PrintF("%s", DescribeSpeed(run, samples_per_second_, finds_peak_));
    }
    absl::PrintF("%s", DescribePlainIssues(outcome.devices));
    const std::string steps = Counted(outcome.fit.steps, "step", "steps");
    const bool has_epoch = outcome.fit.epochs > 0;  // a whole one
    absl::PrintF(
        "%s %s in %s, of which evaluations took %s\n",
        outcome.fit.stopped ? "stopped by a signal after" : "trained",
        has_epoch ? absl::StrCat(Counted(outcome.fit.epochs, "epoch", "epochs"), " (", steps, ")")
                  : steps,
        base::FormatDuration(outcome.elapsed), base::FormatDuration(outcome.fit.evaluation));
    if (outcome.fit.skipped_steps > 0) {
      absl::PrintF("skipped %s with numbers that are not finite\n",
                   Counted(outcome.fit.skipped_steps, "step", "steps"));
    }
    if (outcome.stop_when.has_value()) absl::PrintF("%s\n", DescribeStop(outcome));
    if (outcome.fit.out_of_patience) absl::PrintF("%s\n", DescribePatience(outcome.fit));
    absl::PrintF("fingerprint of the step losses  %s\n", outcome.fit.step_losses_hash);
    absl::PrintF("fingerprint of the parameters   %s\n", outcome.parameters_hash);
    if (!saved_.empty()) {
      absl::PrintF("saved as %s (%s)\n%s\n", base::EscapeControls(saved_),
                   base::FormatBytes(FolderBytes(saved_)), base::EscapeControls(use_));
    }
    std::fflush(stdout);
  }

 private:
  void PrintStep(const engine::FitProgress& progress) const {
    RedrawLine("");
    const bool is_skipped = !progress.step_result.skipped_for.empty();
    absl::PrintF("       step %s: %s, learning rate %.3g, %s samples/s\n",
                 base::FormatCount(progress.run_step),
                 is_skipped ? "skipped" : absl::StrFormat("loss %.4f", progress.step_result.loss),
                 progress.step_result.learning_rate,
                 base::FormatCount(std::llround(progress.samples_per_second)));
    std::fflush(stdout);
  }

  void PrintRow(const std::string& epochs, const engine::EpochResult& result) {
    if (result.samples_per_second > 0) samples_per_second_ = result.samples_per_second;
    RedrawLine("");
    absl::PrintF("%s", table_->Row(epochs, result));
    std::fflush(stdout);
  }

  const int epochs_;
  const ReportOptions options_;
  Measures measures_;
  std::optional<EpochTable> table_;  // once it has started
  std::string saved_;                // the last checkpoint
  std::string use_;                  // the command that uses it
  double samples_per_second_ = 0;    // of the last epoch
  bool finds_peak_ = false;          // of the devices: all are in this process
  absl::Time drawn_ = absl::InfinitePast();
  ProgressPace pace_ = ProgressPace(absl::Now());
};

}  // namespace

std::unique_ptr<engine::TrainingObserver> MakeTextReport(int epochs, const ReportOptions& options) {
  return std::make_unique<TextReport>(epochs, options);
}

}  // namespace stagecoach::tools
