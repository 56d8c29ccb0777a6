#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_LOG_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_LOG_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/session/training_observer.h"
#include "engine/train/fit.h"
#include "tools/stagecoach/train/report.h"

namespace stagecoach::tools {

// Files that record the metrics of a run as it progresses. For one thread.
class RunLog {
 public:
  struct Options {
    // Interval of the steps that are recorded; evaluations all are. 0: ever fewer as the run gets
    // longer, up to 900 for each tenfold of its steps: all up to 1,000, every tenth up to 10,000...
    int64_t every_steps = 1;
    Measures measures;

    bool Records(int64_t step) const;
  };
  // The point at which a run resumes.
  struct Start {
    int64_t step = 0;           // the last step that is done
    bool is_evaluated = false;  // and has been evaluated
  };

  virtual ~RunLog() = default;
  // After an error, which is printed on stderr and kept, these do nothing: the run continues.
  virtual void Step(const engine::FitProgress& progress) = 0;
  virtual void Epoch(const engine::EpochResult& result) = 0;
  virtual void Evaluation(const engine::EpochResult& result) = 0;
  virtual void Answers(const engine::EpochResult& /*result*/,
                       const std::vector<engine::SampledAnswer>& /*answers*/) {}
  virtual const absl::Status& status() const = 0;
};

// A file that grows, for a RunLog.
class LogFile {
 public:
  // `anew` discards what is there. `flag` is the one that asked for the file.
  static absl::StatusOr<LogFile> Open(const std::string& path, bool anew, const char* flag);

  // Passes all of `text` to the system.
  void Write(absl::string_view text);
  const absl::Status& status() const { return status_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  LogFile(std::string path, const char* flag, File file)
      : path_(std::move(path)), flag_(flag), file_(std::move(file)) {}

  std::string path_;
  const char* flag_;
  File file_;
  absl::Status status_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_LOG_H_
