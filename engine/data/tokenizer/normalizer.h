#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_NORMALIZER_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_NORMALIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// Transforms a text before it is divided into pieces, step by step. Thread-safe once all steps are
// added.
class Normalizer {
 public:
  struct Step {
    enum class Kind : uint8_t {
      kNfc,
      kNfd,
      kNfkc,
      kNfkd,
      kLowercase,
      kStripAccents,
      kStripBertAccents,
      kCleanText,     // BERT's: removes control characters, and makes all white space spaces
      kSpaceChinese,  // BERT's: a space on either side of a Chinese character
      kReplace,       // `from` with `to`
      kPrepend,       // `to` in front of a text that is not empty
    };
    Kind kind;
    std::string from = {}, to = {};
  };
  void Add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // Returns whether nothing may be left of the first character of a text.
  bool MayDropTheFirst() const;

  // `is_front`: the text is not a part that follows another.
  std::string Apply(absl::string_view text, bool is_front) const;

  // Returns a place near the end at which a text may be divided, so that its parts become what the
  // whole would; 0: none was found.
  size_t PlaceToDivide(absl::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_NORMALIZER_H_
