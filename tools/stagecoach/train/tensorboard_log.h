#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_TENSORBOARD_LOG_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_TENSORBOARD_LOG_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/stagecoach/train/run_log.h"

namespace stagecoach::tools {

// The metrics of a run as TensorBoard reads them: scalars in a file events.out.tfevents.* of its
// own in a folder. The file is a sequence of TFRecords,
//   uint64 length, uint32 masked CRC-32C of the length, data, uint32 masked CRC-32C of the data,
// little-endian, with mask(c) = ((c >> 15) | (c << 17)) + 0xa282ead8. The data are messages Event
// of tensorflow/core/util/event.proto.
class TensorBoardLog final : public RunLog {
 public:
  // Makes the folder if necessary. TensorBoard then shows what other files in it have of a run only
  // up to `start`, or not at all if the run begins.
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

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_TENSORBOARD_LOG_H_
