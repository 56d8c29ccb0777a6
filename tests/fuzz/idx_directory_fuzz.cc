#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "engine/data/idx.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace stagecoach::fuzz {
namespace {

// A data set's folder, of links to files in memory.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "idx_fuzz_XXXXXX").string();
    STAGECOACH_CHECK(mkdtemp(name.data()) != nullptr, name);
    path_ = name;
    for (size_t i = 0; i < files_.size(); ++i) {
      std::filesystem::create_symlink(files_[i].path(), path_ / kNames[i]);
    }
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  // `input`: a byte with the size of each file but the last, then the files.
  void Fill(absl::string_view input) const {
    absl::string_view sizes = input.substr(0, files_.size() - 1);
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
  static constexpr std::array<const char*, 4> kNames = {
      "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
      "t10k-labels-idx1-ubyte"};
  std::array<MemoryFile, kNames.size()> files_;
  std::filesystem::path path_;
};

}  // namespace

absl::Status Try(absl::string_view input) {
  static const Folder folder;
  folder.Fill(input);
  const absl::StatusOr<engine::TrainTest> data = engine::LoadIdxDirectory(folder.path());
  if (!data.ok()) return data.status();
  for (const auto& set : {data->train, data->test}) {
    std::vector<float> row(static_cast<size_t>(set->features()));
    for (int64_t i = 0; i < set->rows(); ++i) {
      set->CopyNumbers(0, i, absl::MakeSpan(row));
      STAGECOACH_CHECK(set->label(i) < set->classes(), set->label(i));
    }
  }
  const auto samples = engine::LoadIdxImages(folder.path(), data->encoding, data->test->classes());
  STAGECOACH_CHECK(samples.ok() && (*samples)->rows() == data->test->rows(), input);
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
