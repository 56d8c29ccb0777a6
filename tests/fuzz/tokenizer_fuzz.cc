#include <vector>

#include "engine/data/tokenizer/text_pipeline.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

// The input is a tokenizer.json. The ids it produces from a text are within its vocabulary, and can
// be decoded.
absl::Status Try(absl::string_view input) {
  constexpr char kText[] = "I'm 1234\u00a0\u4e2d\u6587  <|endoftext|>\n\n \U0001f600x";
  const auto tokenizer = engine::ParsePipeline(input);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<int32_t>> ids = (*tokenizer)->Encode(kText);
  if (!ids.ok()) return ids.status();  // the pattern takes too long
  for (const int32_t id : *ids) {
    STAGECOACH_CHECK(id >= 0 && id < (*tokenizer)->vocabulary(), id);
  }
  (*tokenizer)->Decode(*ids);
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
