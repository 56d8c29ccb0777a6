#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_NORMALIZER_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_NORMALIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// What is done to a text before it is divided into pieces, step by step. Thread-safe once all are
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
      kCleanText,     // BERT's: no control characters, and all white space is spaces
      kSpaceChinese,  // BERT's: a space on either side of a Chinese character
      kReplace,       // `from` by `to`
      kPrepend,       // `to` in front of a text that is not empty
    };
    Kind kind;
    std::string from = {}, to = {};
  };
  void Add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // Whether nothing may be left of the first character of a text.
  bool MayDropTheFirst() const;

  // `is_front`: the text is not a part that follows another.
  std::string Apply(absl::string_view text, bool is_front) const;

  // A place at which a text may be divided whose parts become what the whole would, near its end;
  // 0: none was found.
  size_t PlaceToDivide(absl::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_NORMALIZER_H_
