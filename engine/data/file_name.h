#ifndef STAGECOACH_ENGINE_DATA_FILE_NAME_H_
#define STAGECOACH_ENGINE_DATA_FILE_NAME_H_

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace stagecoach::engine {

// The most that a compressed text, or file of ids, may become.
inline constexpr int64_t kMaxUncompressedBytes = int64_t{1} << 34;

// Returns whether the name of a file, without the ".gz" of a compressed one, has that ending.
inline bool HasEnding(absl::string_view path, absl::string_view ending) {
  return absl::EndsWith(absl::StripSuffix(path, ".gz"), ending);
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FILE_NAME_H_
