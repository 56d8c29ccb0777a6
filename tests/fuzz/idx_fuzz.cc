#include <cstdint>
#include <vector>

#include "engine/data/formats/idx.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {

// The input is one file, as images and as labels, plain or compressed.
absl::Status Try(absl::string_view input) {
  constexpr int64_t kMaxBytes = int64_t{1} << 20;
  static const MemoryFile file;
  file.Write(input);
  const absl::StatusOr<std::vector<uint8_t>> labels = engine::ReadIdxLabels(file.path(), kMaxBytes);
  const absl::StatusOr<engine::IdxImages> images = engine::ReadIdxImages(file.path(), kMaxBytes);
  STAGECOACH_CHECK(!images.ok() || !labels.ok(), "both images and labels");
  if (!images.ok()) return labels.status();
  STAGECOACH_CHECK(
      static_cast<int64_t>(images->pixels.size()) == images->count * images->height * images->width,
      images->pixels.size());
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
