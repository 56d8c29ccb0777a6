#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_PROMETHEUS_FILE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_PROMETHEUS_FILE_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/stagecoach/train/run_log.h"

namespace stagecoach::tools {

// The newest metrics of a run in a file for the textfile collector of Prometheus' node exporter. It
// is replaced atomically: after each evaluation, and after steps at most every kInterval.
class PrometheusFile final : public RunLog {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(5);

  PrometheusFile(const std::string& path, const Measures& measures)
      : path_(path), measures_(measures) {}

  void Step(const engine::FitProgress& progress) override;
  void Epoch(const engine::EpochResult& result) override;
  void Evaluation(const engine::EpochResult& result) override { Epoch(result); }
  const absl::Status& status() const override { return status_; }

 private:
  void SetNumbers(const nlohmann::ordered_json& event);
  void Write();

  const std::string path_;
  const Measures measures_;
  std::map<std::string, double> values_;  // by name
  absl::Time written_ = absl::InfinitePast();
  absl::Status status_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_PROMETHEUS_FILE_H_
