#include "tools/stagecoach/launch/launched_recorders.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "tools/stagecoach/terminal/messages.h"

namespace stagecoach::tools {

absl::StatusOr<std::unique_ptr<LaunchedRecorders>> LaunchedRecorders::Make(
    const std::string& log_dir) {
  auto recorders = std::make_unique<LaunchedRecorders>();
  if (log_dir.empty()) {
    ASSIGN_OR_RETURN(recorders->scratch_, ScratchFolder::Make("launch"));
    recorders->folder_ = recorders->scratch_->path();
  } else {
    // Processes may be started in other folders.
    std::error_code error;
    recorders->folder_ = (std::filesystem::absolute(log_dir, error) / "rings").string();
    recorders->Clear();
  }
  return recorders;
}

std::optional<engine::HangReport> LaunchedRecorders::FindHang(absl::Duration patience) const {
  const auto records = engine::ReadRecorders(folder_);
  if (!records.ok()) return std::nullopt;  // not there yet, or just being made
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return engine::FindHang(
      *records, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), patience);
}

std::string LaunchedRecorders::Explain(bool is_last) {
  const absl::StatusOr<engine::Diagnosis> diagnosis = engine::Diagnose(folder_);
  std::string text(diagnosis.ok() ? diagnosis->stop.sentence : diagnosis.status().message());
  if (absl::IsNotFound(diagnosis.status()) || text.empty()) return "";
  if (diagnosis.ok() && (scratch_ == nullptr || is_last)) {
    const std::string path = folder_ + "/trace.json";
    const absl::Status written = base::WriteFileAtomically(path, diagnosis->trace);
    if (written.ok() && scratch_ != nullptr) scratch_->Keep();
    absl::StrAppend(&text, "; ", written.ok() ? "see " + path : std::string(written.message()));
  }
  return text;
}

void LaunchedRecorders::Clear() {
  std::error_code ignored;
  std::vector<std::filesystem::path> recorders;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    if (entry.path().extension() == ".ring") recorders.push_back(entry.path());
  }
  for (const std::filesystem::path& recorder : recorders)
    std::filesystem::remove(recorder, ignored);
}

}  // namespace stagecoach::tools
