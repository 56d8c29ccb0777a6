#include "tools/stagecoach/train/metrics_file.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "tools/stagecoach/train/run_events.h"

namespace stagecoach::tools {
namespace {

constexpr int64_t kMaxBytes = int64_t{4} << 30;

// Returns whether the event of a line is not after `start`.
absl::StatusOr<bool> IsBefore(absl::string_view line, const RunLog::Start& start) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(line));
  ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(json));
  ASSIGN_OR_RETURN(const std::string event, reader.RequiredString("event"));
  ASSIGN_OR_RETURN(const int64_t step, reader.RequiredInt64("step", {.min = 0}));
  return step < start.step || (step == start.step && (event == "step" || start.is_evaluated));
}

// Keeps only the lines of what the run does not repeat.
absl::Status Trim(const std::string& path, const RunLog::Start& start) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxBytes));
  std::string kept;
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // the program was killed while writing
    const absl::string_view line(text.data() + begin, end - begin);
    const absl::StatusOr<bool> is_before = IsBefore(line, start);
    RETURN_IF_ERROR(
        base::Annotate(is_before.status(), absl::StrCat(path, ":", number, ": no event of a run")));
    if (*is_before) absl::StrAppend(&kept, line, "\n");
    begin = end + 1;
  }
  return kept == text ? absl::OkStatus() : base::WriteFileAtomically(path, kept);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLog>> MetricsFile::Open(const std::string& path,
                                                          const Options& options,
                                                          const std::optional<Start>& start) {
  const bool goes_on = start.has_value() && base::Exists(path);
  if (goes_on) RETURN_IF_ERROR(Trim(path, *start));
  ASSIGN_OR_RETURN(LogFile file, LogFile::Open(path, !goes_on, "--metrics"));
  return std::unique_ptr<RunLog>(new MetricsFile(options, std::move(file)));
}

void MetricsFile::Step(const engine::FitProgress& progress) {
  if (!options_.Records(progress.run_step)) return;
  Add(StepEvent(progress, options_.measures));
}

void MetricsFile::Epoch(const engine::EpochResult& result) {
  Add(EvaluationEvent("epoch", result, options_.measures));
}

void MetricsFile::Evaluation(const engine::EpochResult& result) {
  Add(EvaluationEvent("evaluation", result, options_.measures));
}

void MetricsFile::Answers(const engine::EpochResult& result,
                          const std::vector<engine::SampledAnswer>& answers) {
  for (size_t i = 0; i < answers.size(); ++i) Add(AnswerEvent(result, i, answers[i]));
}

void MetricsFile::Add(const nlohmann::ordered_json& event) {
  file_.Write(absl::StrCat(Timed(event).dump(), "\n"));
}

}  // namespace stagecoach::tools
