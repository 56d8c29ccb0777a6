#ifndef STAGECOACH_TOOLS_STAGECOACH_GENERATE_TOKEN_TEXT_H_
#define STAGECOACH_TOOLS_STAGECOACH_GENERATE_TOKEN_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace stagecoach::tools {

// The text of a sequence of tokens that grows: of a tokenizer, or, without one, of tokens that are
// bytes.
class TokenText {
 public:
  explicit TokenText(std::shared_ptr<const engine::Tokenizer> tokenizer);

  int64_t vocabulary() const;
  // Errors of Tokenizer::Encode.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;
  // What follows: the characters that this token completes (TextDecoder), or its byte as it is.
  std::string Append(int32_t id);
  std::string Finish();

 private:
  std::shared_ptr<const engine::Tokenizer> tokenizer_;
  std::optional<engine::TextDecoder> decoder_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_GENERATE_TOKEN_TEXT_H_
