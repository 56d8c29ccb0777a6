#include "tools/cli/rings.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/cli/messages.h"

namespace stagecoach::tools {

engine::RingOptions FindRings(const engine::Launch& launch) {
  const char* const variable = std::getenv(kRingsVariable);
  return {
      .folder = variable == nullptr ? "" : variable,
      .launch = launch.id,
      .on_no_file = [](const absl::Status& why) {
        PrintRankNotice(absl::StrCat(
            why.message(), ": if this rank hangs, its launcher does not notice, nor say where"));
      }};
}

absl::StatusOr<std::unique_ptr<LaunchedRings>> LaunchedRings::Make(const std::string& log_dir) {
  auto rings = std::make_unique<LaunchedRings>();
  if (log_dir.empty()) {
    ASSIGN_OR_RETURN(rings->scratch_, ScratchFolder::Make("launch"));
    rings->folder_ = rings->scratch_->path();
  } else {
    // Processes may be started in other folders.
    std::error_code error;
    rings->folder_ = (std::filesystem::absolute(log_dir, error) / "rings").string();
    rings->Clear();
  }
  return rings;
}

std::optional<engine::Standstill> LaunchedRings::FindStandstill(absl::Duration patience) const {
  const auto records = engine::ReadRings(folder_);
  if (!records.ok()) return std::nullopt;  // not there yet, or just being made
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return engine::FindStandstill(
      *records, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), patience);
}

std::string LaunchedRings::Explain(bool is_last) {
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

void LaunchedRings::Clear() {
  std::error_code ignored;
  std::vector<std::filesystem::path> rings;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    if (entry.path().extension() == ".ring") rings.push_back(entry.path());
  }
  for (const std::filesystem::path& ring : rings) std::filesystem::remove(ring, ignored);
}

}  // namespace stagecoach::tools
