#include "engine/session/predict/scores.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"

namespace stagecoach::engine {
namespace {

std::string Text(double value) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), value).ptr};
}

// Writes the lines of one of the formats.
class ScoreLines {
 public:
  virtual ~ScoreLines() = default;
  virtual std::string Header() const { return ""; }
  virtual std::string Scored(int64_t number, const Evaluation& row) const = 0;
  virtual std::string LeftOut(int64_t number, const std::string& why) const = 0;
};

class JsonScores final : public ScoreLines {
 public:
  explicit JsonScores(const char* name) : name_(name) {}

  std::string Scored(int64_t number, const Evaluation& row) const override {
    const auto json = [](double value) { return std::isfinite(value) ? Text(value) : "null"; };
    return absl::StrCat("{\"", name_, "\":", number,
                        ",\"log_likelihood\":", json(LogLikelihoodOf(row)),
                        ",\"tokens\":", row.answers, ",\"correct\":", row.correct,
                        ",\"perplexity\":", json(std::exp(row.loss)), "}\n");
  }
  std::string LeftOut(int64_t number, const std::string& why) const override {
    return absl::StrCat("{\"", name_, "\":", number, ",\"left_out\":", nlohmann::json(why).dump(),
                        "}\n");
  }

 private:
  const char* const name_;
};

class CsvScores final : public ScoreLines {
 public:
  explicit CsvScores(const char* name) : name_(name) {}

  std::string Header() const override {
    return absl::StrCat(name_, ",log_likelihood,tokens,correct,perplexity,left_out\n");
  }
  std::string Scored(int64_t number, const Evaluation& row) const override {
    return absl::StrCat(number, ",", Text(LogLikelihoodOf(row)), ",", row.answers, ",", row.correct,
                        ",", Text(std::exp(row.loss)), ",\n");
  }
  std::string LeftOut(int64_t number, const std::string& why) const override {
    return absl::StrCat(number, ",,,,,", why, "\n");
  }

 private:
  const char* const name_;
};

std::unique_ptr<ScoreLines> LinesFor(const std::string& path, bool has_lines) {
  const char* const name = has_lines ? "line" : "row";
  if (absl::EndsWith(path, ".csv")) return std::make_unique<CsvScores>(name);
  return std::make_unique<JsonScores>(name);
}

// Takes the evaluations of rows in their order.
class ScoreWriter {
 public:
  ScoreWriter(const PredictionTask& task, const base::AppendFunction& append)
      : task_(task), append_(append), format_(LinesFor(task.scores, !task.lines.empty())) {}

  absl::Status Begin() {
    text_ = format_->Header();
    AddLeftOut();
    return Flush();
  }

  absl::Status Take(absl::Span<const Evaluation> rows) {
    if (task_.is_stopped != nullptr && task_.is_stopped())
      return absl::CancelledError("stopped by a signal");
    for (const Evaluation& row : rows) {
      hasher_.Update(
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&row.loss), sizeof(row.loss)));
      not_finite_ += std::isfinite(row.loss) ? 0 : 1;
      const int64_t number =
          task_.lines.empty() ? rows_ : task_.lines[static_cast<size_t>(next_)].line;
      text_ += format_->Scored(number, row);
      ++rows_;
      ++next_;
      AddLeftOut();
    }
    if (task_.on_rows) task_.on_rows(rows_);
    return Flush();
  }

  Prediction Finish(const Evaluation& evaluation, absl::Duration elapsed) && {
    return {.evaluation = evaluation,
            .confusion = Confusion(0),
            .not_finite = not_finite_,
            .outputs_hash = hasher_.HexDigest(),
            .elapsed = elapsed};
  }

 private:
  // Adds the lines before the next row.
  void AddLeftOut() {
    for (; next_ < std::ssize(task_.lines); ++next_) {
      const ChatLine& line = task_.lines[static_cast<size_t>(next_)];
      if (line.left_out.empty()) return;
      text_ += format_->LeftOut(line.line, line.left_out);
    }
  }

  absl::Status Flush() {
    if (append_ != nullptr) RETURN_IF_ERROR(append_(text_));
    text_.clear();
    return absl::OkStatus();
  }

  const PredictionTask& task_;
  const base::AppendFunction& append_;
  const std::unique_ptr<ScoreLines> format_;
  std::string text_;  // not written yet
  int64_t rows_ = 0;  // that have been taken
  int64_t next_ = 0;  // of the task's lines
  int64_t not_finite_ = 0;
  base::Hasher hasher_;
};

}  // namespace

double LogLikelihoodOf(const Evaluation& evaluation) {
  return -evaluation.loss * static_cast<double>(evaluation.answers);
}

absl::Status CheckScoresName(const std::string& path) {
  if (absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".csv")) return absl::OkStatus();
  return base::UsageError(
      absl::StrCat("\"", path, "\": expected a name that ends in .jsonl or .csv"));
}

absl::StatusOr<Prediction> ScoreAll(Trainer& trainer, const PredictionTask& task) {
  absl::StatusOr<Prediction> prediction = absl::UnknownError("");
  const auto score = [&](const base::AppendFunction& append) -> absl::Status {
    const absl::Time begin = absl::Now();
    ScoreWriter writer(task, append);
    RETURN_IF_ERROR(writer.Begin());
    ASSIGN_OR_RETURN(const Evaluation evaluation,
                     trainer.EvaluateRows(*task.data, [&](absl::Span<const Evaluation> rows) {
                       return writer.Take(rows);
                     }));
    prediction = std::move(writer).Finish(evaluation, absl::Now() - begin);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(task.scores.empty() ? score(nullptr)
                                      : base::WriteFileAtomically(task.scores, score));
  return prediction;
}

}  // namespace stagecoach::engine
