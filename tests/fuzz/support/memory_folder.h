#ifndef STAGECOACH_TESTS_FUZZ_SUPPORT_MEMORY_FOLDER_H_
#define STAGECOACH_TESTS_FUZZ_SUPPORT_MEMORY_FOLDER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {

// A folder of links to N files in memory, for readers that take a folder.
template <size_t N>
class MemoryFolder {
 public:
  explicit MemoryFolder(const std::array<const char*, N>& names) {
    std::string path = (std::filesystem::temp_directory_path() / "fuzz_XXXXXX").string();
    STAGECOACH_CHECK(mkdtemp(path.data()) != nullptr, path);
    path_ = path;
    for (size_t i = 0; i < N; ++i) {
      std::filesystem::create_symlink(files_[i].path(), path_ / names[i]);
    }
  }
  ~MemoryFolder() { std::filesystem::remove_all(path_); }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  // `input` is one byte with the size of each file except the last, then the files.
  void Fill(absl::string_view input) const {
    absl::string_view sizes = input.substr(0, N - 1);
    input.remove_prefix(sizes.size());
    for (const MemoryFile& file : files_) {
      const size_t size = sizes.empty() ? input.size() : static_cast<uint8_t>(sizes.front());
      if (!sizes.empty()) sizes.remove_prefix(1);
      file.Write(input.substr(0, size));
      input.remove_prefix(std::min(size, input.size()));
    }
  }
  std::string path() const { return path_.string(); }

 private:
  std::array<MemoryFile, N> files_;
  std::filesystem::path path_;
};

}  // namespace stagecoach::fuzz

#endif  // STAGECOACH_TESTS_FUZZ_SUPPORT_MEMORY_FOLDER_H_
