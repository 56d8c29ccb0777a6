#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/data/tokenizer/token_ids.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {

// The input is one file, in each of the formats.
absl::Status Try(absl::string_view input) {
  constexpr int64_t kVocabulary = 1000;
  static const MemoryFile file;
  file.Write(input);
  absl::Status refusal;
  bool is_accepted = false;
  for (const auto format :
       {engine::TokenFormat::kText, engine::TokenFormat::kBin, engine::TokenFormat::kNpy}) {
    const absl::StatusOr<engine::TokenIds> ids = engine::TokenIds::Map(file.path(), format);
    refusal.Update(ids.status());
    if (!ids.ok()) continue;
    is_accepted = true;
    std::vector<int32_t> all(static_cast<size_t>(ids->size()));
    ids->Copy(0, absl::MakeSpan(all));
    int64_t largest = -1;
    for (const int32_t id : all) {
      STAGECOACH_CHECK(id >= 0 && id < engine::kMaxVocabulary, id);
      largest = std::max<int64_t>(largest, id);
    }
    STAGECOACH_CHECK(largest == ids->largest(), absl::StrCat(largest, ", not ", ids->largest()));
    const bool fits = engine::TokenIds::Map(file.path(), format, kVocabulary).ok();
    STAGECOACH_CHECK(fits == (largest < kVocabulary), largest);
  }
  return is_accepted ? absl::OkStatus() : refusal;
}

}  // namespace stagecoach::fuzz
