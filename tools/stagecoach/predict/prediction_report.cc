#include "tools/stagecoach/predict/prediction_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/text/units.h"
#include "engine/session/predict/scores.h"
#include "tools/stagecoach/predict/confusion_table.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/train/report.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

std::string CountedAs(int64_t count, const char* one) {
  return absl::StrCat(base::FormatCount(count), " ", one, count == 1 ? "" : "s");
}

double RowsPerSecond(const engine::Prediction& prediction) {
  const double seconds = std::max(absl::ToDoubleSeconds(prediction.elapsed), 1e-9);
  return static_cast<double>(prediction.evaluation.rows) / seconds;
}

// Returns the number of samples that are left out for each reason.
std::map<std::string, int64_t> LeftOut(const engine::PredictionTask& task) {
  std::map<std::string, int64_t> counts;
  for (const engine::ChatLine& line : task.lines) {
    if (!line.left_out.empty()) ++counts[line.left_out];
  }
  return counts;
}

// "auc 0.9534, f1 0.8123, top5 0.9712". Among five classes or fewer, every one is in the top five.
void PrintMetrics(const std::map<std::string, double>& metrics, size_t classes) {
  std::vector<std::string> texts;
  for (const auto& [metric, value] : metrics) {
    if (metric == "test_top5" && classes <= 5) continue;
    texts.push_back(absl::StrFormat("%s %.4f", absl::StripPrefix(metric, "test_"), value));
  }
  absl::PrintF("%s\n", absl::StrJoin(texts, ", "));
}

// "rmse 1.25", or "rmse 1.25 of price, 0.5 of rooms".
std::string DescribeRmse(const engine::PredictionTask& task, const engine::Prediction& prediction,
                         const Measures& measures) {
  const std::vector<std::string>& names = task.encoding.label_names;
  if (names.empty()) {
    return absl::StrFormat("rmse %.6g", measures.Rmse(prediction.evaluation.loss));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < names.size(); ++i) {
    texts.push_back(absl::StrFormat("%.6g of %s", prediction.label_rmse[i], names[i]));
  }
  return absl::StrCat("rmse ", absl::StrJoin(texts, ", "));
}

class PredictionText final : public engine::PredictionObserver {
 public:
  ~PredictionText() override { RedrawLine(""); }

  void Start(const engine::Checkpoint& checkpoint, const engine::Trainer& trainer,
             const engine::PredictionTask& task) override {
    const partition::Plan& plan = trainer.plan();
    rows_ = task.data->rows();
    absl::PrintF("model  %s, after step %s\n", checkpoint.path(),
                 base::FormatCount(checkpoint.manifest().step));
    measures_ = Measures::Of(*task.data, trainer.run().profile.loss_spec, task.encoding);
    absl::PrintF("data   %s%s%s\n", CountedAs(rows_, "row"),
                 measures_.tokens > 0 ? " of " + CountedAs(measures_.tokens, "token") : "",
                 task.has_labels() ? "" : ", no labels");
    absl::PrintF("plan   %s%s, %s of %s at a time\n", CountedAs(plan.num_stages(), "stage"),
                 plan.replicas() > 1 ? absl::StrCat(" of ", plan.replicas(), " replicas") : "",
                 base::FormatCount(plan.micro_batches()) +
                     (plan.micro_batches() == 1 ? " micro-batch" : " micro-batches"),
                 CountedAs(plan.micro_batch_rows, "row"));
    RedrawLine("preparing the devices");
    std::fflush(stdout);
  }

  void Progress(int64_t rows) override {
    const absl::Time now = absl::Now();
    if (now - drawn_ < absl::Milliseconds(100)) return;
    drawn_ = now;
    RedrawLine(absl::StrCat(base::FormatCount(rows), " of ", CountedAs(rows_, "row")));
  }

  void End(const engine::PredictionTask& task, const engine::Prediction& prediction,
           const std::vector<engine::DeviceReport>& devices) override {
    RedrawLine("");
    const bool is_scored = task.wants_scores;
    for (const engine::DeviceReport& device : devices) {
      absl::PrintF("       %s took %s of memory, %s predicted\n", device.device,
                   base::FormatBytes(device.measured_peak_bytes),
                   base::FormatBytes(device.predicted_peak_bytes));
    }
    const engine::Evaluation& evaluation = prediction.evaluation;
    if (task.has_labels()) {
      const int columns = TerminalColumns() > 0 ? TerminalColumns() : 80;
      if (task.counts_classes()) {
        absl::PrintF("\n%s\n", ConfusionTable(prediction.confusion, task.encoding, columns));
      }
      if (is_scored) {
        absl::PrintF("log-likelihood %.4f per token", -evaluation.loss);
      } else {
        absl::PrintF("loss %.4f", evaluation.loss);
      }
      if (measures_.has_perplexity) absl::PrintF(", perplexity %.2f", std::exp(evaluation.loss));
      if (measures_.has_rmse()) {
        absl::PrintF(", %s\n", DescribeRmse(task, prediction, measures_));
      } else {
        absl::PrintF(", accuracy %.2f %% (%s of %s)\n", 100 * evaluation.accuracy(),
                     base::FormatCount(evaluation.correct), base::FormatCount(evaluation.answers));
      }
      if (task.counts_classes()) {
        PrintMetrics(prediction.metrics, prediction.confusion.of_class().size());
      }
    }
    absl::PrintF("%s %s in %s: %s a second\n", is_scored ? "scored" : "predicted",
                 CountedAs(evaluation.rows, "row"), base::FormatDuration(prediction.elapsed),
                 base::FormatCount(std::llround(RowsPerSecond(prediction))));
    for (const auto& [why, count] : LeftOut(task)) {
      absl::PrintF("%s left out: %s\n", count == 1 ? "1 is" : base::FormatCount(count) + " are",
                   why);
    }
    if (prediction.not_finite > 0) {
      absl::PrintF("%s %s not finite\n",
                   CountedAs(prediction.not_finite, is_scored ? "score" : "output"),
                   prediction.not_finite == 1 ? "is" : "are");
    }
    if (!task.scores.empty()) absl::PrintF("wrote %s\n", task.scores);
    for (const engine::PredictionTask::File& file : task.files)
      absl::PrintF("wrote %s\n", file.path);
    absl::PrintF("fingerprint of the %s  %s\n", is_scored ? "scores" : "outputs",
                 prediction.outputs_hash);
    std::fflush(stdout);
  }

 private:
  int64_t rows_ = 0;
  Measures measures_;
  absl::Time drawn_ = absl::InfinitePast();
};

class PredictionJson final : public engine::PredictionObserver {
 public:
  void Start(const engine::Checkpoint& checkpoint, const engine::Trainer& trainer,
             const engine::PredictionTask& task) override {
    const partition::Plan& plan = trainer.plan();
    measures_ = Measures::Of(*task.data, trainer.run().profile.loss_spec, task.encoding);
    ordered_json first_layers = plan.first_layer;
    PrintJsonLine({{"event", "plan"},
                   {"checkpoint", checkpoint.path()},
                   {"step", checkpoint.manifest().step},
                   {"rows", task.data->rows()},
                   {"labels", task.has_labels()},
                   {"first_layers", std::move(first_layers)},
                   {"replicas", plan.replicas()},
                   {"micro_batches", plan.micro_batches()},
                   {"micro_batch_rows", plan.micro_batch_rows}});
  }

  void Progress(int64_t /*rows*/) override {}

  void End(const engine::PredictionTask& task, const engine::Prediction& prediction,
           const std::vector<engine::DeviceReport>& devices) override {
    const engine::Evaluation& evaluation = prediction.evaluation;
    ordered_json event = {{"event", "end"},
                          {"rows", evaluation.rows},
                          {"seconds", absl::ToDoubleSeconds(prediction.elapsed)},
                          {"samples_per_second", RowsPerSecond(prediction)}};
    const std::string hashed = task.wants_scores ? "scores" : "outputs";
    event[hashed + "_hash"] = prediction.outputs_hash;
    event[hashed + "_not_finite"] = prediction.not_finite;
    if (task.wants_scores) {
      event["log_likelihood"] = engine::LogLikelihoodOf(evaluation);
      event["tokens"] = evaluation.answers;
      ordered_json& left_out = event["left_out"] = ordered_json::object();
      for (const auto& [why, count] : LeftOut(task)) left_out[why] = count;
    }
    if (measures_.tokens > 0) {
      event["tokens_per_second"] =
          RowsPerSecond(prediction) * static_cast<double>(measures_.tokens);
    }
    if (measures_.has_perplexity && task.has_labels()) {
      event["perplexity"] = std::exp(evaluation.loss);
    }
    if (task.has_labels()) AddLabels(task, prediction, event);
    ordered_json& reports = event["devices"] = ordered_json::array();
    for (const engine::DeviceReport& device : devices) {
      reports.push_back({{"device", device.device},
                         {"predicted_peak_bytes", device.predicted_peak_bytes},
                         {"measured_peak_bytes", device.measured_peak_bytes}});
    }
    ordered_json& files = event["files"] = ordered_json::array();
    for (const engine::PredictionTask::File& file : task.files) files.push_back(file.path);
    if (!task.scores.empty()) files.push_back(task.scores);
    PrintJsonLine(event);
  }

 private:
  void AddLabels(const engine::PredictionTask& task, const engine::Prediction& prediction,
                 ordered_json& event) const {
    event["loss"] = prediction.evaluation.loss;
    if (measures_.has_rmse()) {
      event["rmse"] = measures_.Rmse(prediction.evaluation.loss);
      const std::vector<std::string>& names = task.encoding.label_names;
      for (size_t i = 0; i < names.size(); ++i) {
        event["rmse_of"][names[i]] = prediction.label_rmse[i];
      }
      return;
    }
    event["correct"] = prediction.evaluation.correct;
    event["accuracy"] = prediction.evaluation.accuracy();
    if (!task.counts_classes()) return;
    for (const auto& [metric, value] : prediction.metrics) {
      event[std::string(absl::StripPrefix(metric, "test_"))] = value;
    }
    ordered_json& classes = event["classes"] = ordered_json::array();
    const std::vector<engine::Confusion::OfClass>& of_class = prediction.confusion.of_class();
    for (size_t label = 0; label < of_class.size(); ++label) {
      classes.push_back({{"class", task.encoding.NameOf(static_cast<int64_t>(label))},
                         {"rows", of_class[label].rows},
                         {"correct", of_class[label].correct},
                         {"predicted", of_class[label].predicted}});
    }
    ordered_json& confusion = event["confusion"] = ordered_json::array();
    for (const auto& [pair, rows] : prediction.confusion.counts()) {
      confusion.push_back({{"label", task.encoding.NameOf(pair.first)},
                           {"class", task.encoding.NameOf(pair.second)},
                           {"rows", rows}});
    }
  }

  Measures measures_;
};

}  // namespace

std::unique_ptr<engine::PredictionObserver> MakePredictionReport(bool json) {
  if (json) return std::make_unique<PredictionJson>();
  return std::make_unique<PredictionText>();
}

}  // namespace stagecoach::tools
