#include "tests/engine/checkpoint/small_save.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "schedule/generators/generators.h"

namespace stagecoach::engine {
namespace {

constexpr float kPart = 0.25F;

}  // namespace

ParameterTable SmallParameters() {
  ParameterTable table;
  const std::vector<ParameterSpec> first = {{.name = "weight", .shape = {3, 5}},
                                            {.name = "bias", .shape = {5}}};
  const std::vector<ParameterSpec> second = {{.name = "weight", .shape = {5, 2}}};
  table.Add(0, first);
  table.Add(2, second);
  return table;
}

SmallState::SmallState(int64_t step) : step_(step) {
  const ParameterTable parameters = SmallParameters();
  for (const ModelParameter& parameter : parameters.all()) {
    for (int state = kTrainedValue; state < Optimizer::AdamW().states(); ++state) {
      std::vector<float>& values = values_[{parameter.id, state}];
      for (int64_t i = 0; i < parameter.shape.elements(); ++i) {
        values.push_back(static_cast<float>(step * 1000 + i * 10 + state) +
                         kPart * static_cast<float>(parameter.id.value()));
      }
    }
  }
}

SaveTask SmallState::Task(const std::string& folder, int process, int processes) const {
  SaveTask task = {.folder = folder, .id = absl::StrCat("id", step_)};
  task.process = process;
  task.processes = processes;
  task.files = ShardFilesOf(SmallParameters(), Optimizer::AdamW()).value();
  for (const ShardFile& file : task.files) task.owners.push_back(file.layer % processes);
  for (const auto& [key, values] : values_) {
    const auto [id, state] = key;
    const auto count = static_cast<int64_t>(values.size());
    const bool is_divided = state != kTrainedValue && processes > 1;
    const int owner = SmallParameters()[id].layer % processes;
    if (!is_divided && owner != process) continue;
    const int64_t begin = is_divided ? count * process / processes : 0;
    const int64_t end = is_divided ? count * (process + 1) / processes : count;
    const auto own =
        std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    task.pieces.push_back({id, state, begin, std::as_bytes(own)});
  }
  task.manifest.program = "a test";
  task.manifest.step = step_;
  task.manifest.layers = {"linear", "gelu", "linear"};
  task.manifest.input = {3};
  task.manifest.plan.plan = {
      .first_layer = {0},
      .num_layers = 3,
      .micro_batch_rows = 8,
      .schedule = schedule::Generate("gpipe", {.ranks = 1, .micro_batches = 1}).value()};
  return task;
}

SaveTask SmallState::Task(const std::string& folder, const Retention& retention) const {
  SaveTask task = Task(folder, 0, 1);
  task.retention = retention;
  return task;
}

base::SystemCalls& WithoutSync() {
  class Calls final : public base::SystemCalls {
   public:
    int Sync(int /*file*/) override { return 0; }
    void StartSync(int /*file*/) override {}
  };
  static Calls* const calls = new Calls;
  return *calls;
}

absl::StatusOr<std::string> BeginAndWrite(base::SystemCalls& calls, const SaveTask& task,
                                          const std::atomic<bool>& cancelled) {
  RETURN_IF_ERROR(BeginCheckpoint(calls, task));
  return WriteCheckpoint(calls, task, cancelled);
}

absl::Status CheckHolds(const std::string& path, int64_t step) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  RETURN_IF_ERROR(checkpoint.Verify());
  const SmallState state(step);
  const SaveTask task = state.Task("", {});
  for (const ShardFile& file : task.files) {
    ASSIGN_OR_RETURN(const LoadedFile loaded, checkpoint.Load(file.name));
    for (const ShardTensor& tensor : file.tensors) {
      ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                       loaded.BytesOf({.name = tensor.name, .shape = tensor.shape}));
      const auto piece =
          std::find_if(task.pieces.begin(), task.pieces.end(), [&](const HostPiece& candidate) {
            return candidate.parameter == tensor.parameter && candidate.state == tensor.state;
          });
      if (bytes != piece->bytes) {
        return absl::UnknownError(absl::StrCat(tensor.name, " has other values"));
      }
    }
  }
  if (checkpoint.manifest().step == step) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("it is of step ", checkpoint.manifest().step));
}

absl::Status CheckNewest(const std::string& folder, const std::vector<int64_t>& steps) {
  std::vector<absl::Status> passed_over;
  ASSIGN_OR_RETURN(const Checkpoint newest, OpenNewest(folder, passed_over));
  const int64_t step = newest.manifest().step;
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) {
    return absl::UnknownError(absl::StrCat("the newest is of step ", step));
  }
  // A folder that has the name of a checkpoint counts as one.
  if (!passed_over.empty()) return passed_over.front();
  return CheckHolds(newest.path(), step);
}

std::map<std::string, std::string> FilesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

std::vector<std::string> LeftoversIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "step-")) names.push_back(name);
  }
  return names;
}

}  // namespace stagecoach::engine
