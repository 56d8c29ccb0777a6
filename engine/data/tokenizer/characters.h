#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_CHARACTERS_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_CHARACTERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// Classifies characters as the library `tokenizers` does
// (tests/fixtures/tokenizers/make_characters.py), whatever version of Unicode this machine's
// libraries have.

bool IsWhiteSpace(char32_t character);
bool IsWordCharacter(char32_t character);  // \w in Rust's regular expressions
bool IsNumeric(char32_t character);
bool IsPunctuation(char32_t character);  // Unicode's P, and everything in ASCII that is called so
bool IsControl(char32_t character);      // Unicode's C, except for tab and line ends
bool IsChinese(char32_t character);      // as in BERT

// Returns the character at `at`, and moves `at` behind it. Pre-condition: `text` is UTF-8 there.
char32_t NextCharacter(absl::string_view text, size_t& at);
// Return whether the last, or the first, character is one of a word; false for an empty text.
bool EndsInWordCharacter(absl::string_view text);
bool BeginsWithWordCharacter(absl::string_view text);
// Return `text` without white space at its front, or at its end.
absl::string_view WithoutLeadingSpace(absl::string_view text);
absl::string_view WithoutTrailingSpace(absl::string_view text);

// Return normal forms (Unicode's annex 15) of UTF-8.
std::string ToNfd(absl::string_view text);
std::string ToNfkc(absl::string_view text);
std::string ToNfkd(absl::string_view text);
std::string ToNfc(absl::string_view text);
// Return a text without marks (M), which accents are in the form NFD; or, as in BERT, without those
// that take no space (Mn).
std::string WithoutMarks(absl::string_view text);
std::string WithoutBertMarks(absl::string_view text);
std::string ToLowercase(absl::string_view text);

void AppendCharacter(char32_t character, std::string& text);

// Ranges of characters that are in Oniguruma's \p{L}, or \p{N}.
struct CharacterRange {
  char32_t first, last;
};
std::vector<CharacterRange> LettersOfPatterns();
std::vector<CharacterRange> NumbersOfPatterns();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_CHARACTERS_H_
