#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_SPLIT_PATTERN_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_SPLIT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;

namespace stagecoach::engine {

// GPT-2's pattern, which ByteLevel stands for.
extern const char kGpt2Pattern[];

// A regular expression that divides text into pieces, from left to right. Patterns come from
// programs that match with Oniguruma, while this class uses PCRE2; so only what means the same to
// both is accepted:
//   characters, and \r \n \t \f and those in front of punctuation; \s \S \d \D; \p and \P of
//   a category {Lu} or a script {Han}; classes, without classes in them; groups (...) (?:...)
//   (?i:...) (?>...); alternatives;
//   (?=...) and (?!...); $, which is the end of a line; the quantifiers ? * + {n,m}, also followed
//   by ?, or by + except for {}
// \s is Unicode's White_Space, and letters and numbers, \p{L} and \p{N}, are those of characters.h.
// Case is folded by single characters. Immutable and thread-safe.
class SplitPattern {
 public:
  // InvalidArgument names the part of the pattern that is not accepted, or says that the pattern
  // can match nothing.
  static absl::StatusOr<SplitPattern> Compile(absl::string_view pattern);

  // One text's matches; the pattern outlives it. Thread-compatible.
  class Matcher {
   public:
    explicit Matcher(const SplitPattern& pattern);
    ~Matcher();
    Matcher(Matcher&& other) noexcept;
    Matcher& operator=(Matcher&&) = delete;

    enum class Result : uint8_t { kFound, kNone, kNeedsMore };
    // Looks for the first match at or behind `from`, and sets begin() and end() if there is one.
    // kNeedsMore, unless the text `is_whole`: what follows it may decide, or there may be a match
    // further on. ResourceExhausted: the search takes too much time or memory. Pre-condition:
    // `text` is UTF-8, and `from` is at a character.
    absl::StatusOr<Result> Find(absl::string_view text, size_t from, bool is_whole);
    size_t begin() const;
    size_t end() const;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  explicit SplitPattern(std::shared_ptr<const pcre2_real_code_8> code) : code_(std::move(code)) {}

  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_SPLIT_PATTERN_H_
