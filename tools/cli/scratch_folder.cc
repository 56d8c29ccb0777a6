#include "tools/cli/scratch_folder.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::tools {

ScratchFolder::ScratchFolder(std::string path) : path_(std::move(path)) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<ScratchFolder>> ScratchFolder::Make(const std::string& command) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    return absl::InternalError(absl::StrCat("there is no folder for temporary files, ",
                                            named != nullptr ? named : "/tmp",
                                            "; name one with TMPDIR"));
  }
  std::string name = (parent / absl::StrCat("stagecoach-", command, "-XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot make a folder in ", parent.string()));
  }
  return absl::WrapUnique(new ScratchFolder(std::move(name)));
}

}  // namespace stagecoach::tools
