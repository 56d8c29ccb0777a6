#include <cstdint>

#include "absl/strings/strip.h"
#include "engine/checkpoint/files/safetensors.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

// The input is the beginning of a file whose header says how long it is, or of one that ends there.
absl::Status Try(absl::string_view input) {
  const bool is_whole = absl::ConsumePrefix(&input, "=");
  const int64_t file_bytes = static_cast<int64_t>(input.size()) + (is_whole ? 0 : 4096);
  absl::StatusOr<engine::SafetensorsHeader> header = engine::ParseSafetensors(input, file_bytes);
  if (!header.ok()) return header.status();
  const std::string text = engine::LayOutSafetensors(*header);
  int64_t end = static_cast<int64_t>(text.size());
  for (const engine::SafetensorsEntry& entry : header->tensors) end += entry.bytes();
  const absl::StatusOr<engine::SafetensorsHeader> again = engine::ParseSafetensors(text, end);
  STAGECOACH_CHECK(again.ok(), absl::StrCat(again.status().ToString(), " in\n", text));
  STAGECOACH_CHECK(*again == *header, absl::StrCat("reads back as another header:\n", text));
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
