#ifndef STAGECOACH_TOOLS_CLI_TENSORBOARD_LOG_H_
#define STAGECOACH_TOOLS_CLI_TENSORBOARD_LOG_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/run_log.h"

namespace stagecoach::tools {

// The figures of a run as TensorBoard reads them: scalars in a file events.out.tfevents.* of its
// own in a folder. The file is a sequence of TFRecords,
//   uint64 length, uint32 masked CRC-32C of the length, data, uint32 masked CRC-32C of the data
// little-endian, with mask(c) = ((c >> 15) | (c << 17)) + 0xa282ead8. The data are messages Event
// of tensorflow/core/util/event.proto.
class TensorBoardLog final : public RunLog {
 public:
  // Makes the folder if need be. Of what other files in it have of a run, TensorBoard then shows
  // only what comes before `start`, or nothing of it in a run that begins.
  static absl::StatusOr<std::unique_ptr<RunLog>> Open(const std::string& folder,
                                                      const Options& options,
                                                      const std::optional<Start>& start);

  void Step(const engine::FitProgress& progress) override;
  void Epoch(const engine::EpochResult& result) override { Evaluation(result); }
  void Evaluation(const engine::EpochResult& result) override;
  const absl::Status& status() const override { return file_.status(); }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;

  TensorBoardLog(const Options& options, LogFile file)
      : options_(options), file_(std::move(file)) {}
  void Add(int64_t step, const Scalars& scalars);

  const Options options_;
  LogFile file_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_TENSORBOARD_LOG_H_
