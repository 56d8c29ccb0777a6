#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_METRICS_FILE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_METRICS_FILE_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/stagecoach/train/run_log.h"

namespace stagecoach::tools {

// The metrics of a run in a file, one event (tools/stagecoach/train/run_events.h) a line. Each line
// is written before the function that adds it returns.
class MetricsFile final : public RunLog {
 public:
  // Opens the file. It is made anew if the run begins. If the run resumes, it loses the lines of
  // what comes after `start` and will be done again, and an unfinished line at its end.
  // InvalidArgument names a line that is not an event with a step: the file is something else, and
  // stays as it is.
  static absl::StatusOr<std::unique_ptr<RunLog>> Open(const std::string& path,
                                                      const Options& options,
                                                      const std::optional<Start>& start);

  void Step(const engine::FitProgress& progress) override;
  void Epoch(const engine::EpochResult& result) override;
  void Evaluation(const engine::EpochResult& result) override;
  void Answers(const engine::EpochResult& result,
               const std::vector<engine::SampledAnswer>& answers) override;
  const absl::Status& status() const override { return file_.status(); }

 private:
  MetricsFile(const Options& options, LogFile file) : options_(options), file_(std::move(file)) {}
  void Add(const nlohmann::ordered_json& event);

  const Options options_;
  LogFile file_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_METRICS_FILE_H_
