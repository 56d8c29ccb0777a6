#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_CHARACTERS_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_CHARACTERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// What the library `tokenizers` takes characters for
// (tests/fixtures/tokenizers/make_characters.py), whatever version of Unicode this machine's
// libraries are of.

bool IsWhiteSpace(char32_t character);
bool IsWordCharacter(char32_t character);  // \w of Rust's regular expressions
bool IsNumeric(char32_t character);
bool IsPunctuation(char32_t character);  // P of Unicode, and of ASCII all that is called so
bool IsControl(char32_t character);      // C of Unicode, but for tab and ends of lines
bool IsChinese(char32_t character);      // as BERT has it

// The character at `at`, which is moved behind it. Pre-condition: `text` is UTF-8 there.
char32_t NextCharacter(absl::string_view text, size_t& at);
// Whether the last, or the first one is such a one; false of no text.
bool EndsInWordCharacter(absl::string_view text);
bool BeginsWithWordCharacter(absl::string_view text);
// `text` without white space at its front, or at its end.
absl::string_view WithoutLeadingSpace(absl::string_view text);
absl::string_view WithoutTrailingSpace(absl::string_view text);

// Forms of Unicode's normalization (annex 15) of UTF-8.
std::string ToNfd(absl::string_view text);
std::string ToNfkc(absl::string_view text);
std::string ToNfkd(absl::string_view text);
std::string ToNfc(absl::string_view text);
// Without marks (M), which accents are in a text of the form NFD; or, as BERT has it, without those
// that take no space (Mn).
std::string WithoutMarks(absl::string_view text);
std::string WithoutBertMarks(absl::string_view text);
std::string ToLowercase(absl::string_view text);

void AppendCharacter(char32_t character, std::string& text);

// Ranges of characters that are in \p{L}, or \p{N}, of Oniguruma.
struct CharacterRange {
  char32_t first, last;
};
std::vector<CharacterRange> LettersOfPatterns();
std::vector<CharacterRange> NumbersOfPatterns();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_CHARACTERS_H_
