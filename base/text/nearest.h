#ifndef STAGECOACH_BASE_TEXT_NEAREST_H_
#define STAGECOACH_BASE_TEXT_NEAREST_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::base {

// Returns the word in `known` that a user who typed `word` most likely meant: the one at the
// smallest Levenshtein distance, ignoring case, and the first among equals. Returns "" when even
// that one differs in more than a third of the longer word's letters (rounded up), or in all of
// them. For "did you mean".
std::string Nearest(absl::string_view word, absl::Span<const std::string> known);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_NEAREST_H_
