#include "tests/schedule/mutate.h"

#include <cstddef>
#include <utility>

#include "base/random.h"

namespace stagecoach::schedule {

std::string Mutate(std::string text, uint64_t seed, absl::string_view meaningful) {
  const base::RandomStream random(20261121, seed);
  uint64_t next = 0;
  const auto below = [&](uint64_t n) { return static_cast<size_t>(random.Below(next++, n)); };
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    const size_t at = below(text.size() + 1);
    const char byte =
        below(8) == 0 ? static_cast<char>(below(256)) : meaningful[below(meaningful.size())];
    switch (below(5)) {
      case 0:
        text.insert(at, below(8) == 0 ? 30 : 1, byte);
        break;
      case 1:
        text.erase(at, 1 + below(4));
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), below(20)));
        break;
      case 3:
        if (at + 1 < text.size()) std::swap(text[at], text[at + 1]);
        break;
      default:
        if (at < text.size()) text[at] = byte;
    }
  }
  return text;
}

}  // namespace stagecoach::schedule
