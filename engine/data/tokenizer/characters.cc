#include "engine/data/tokenizer/characters.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/types/span.h"

namespace stagecoach::engine {
namespace {

using Range = CharacterRange;
struct Mapping {
  char32_t character;
  uint32_t begin, count;  // of its replacement
};
struct ClassRange {
  char32_t first, last;
  int of_class;
};
struct Composition {
  char32_t first, second, composed;
};

#include "engine/data/tokenizer/characters.inc"

template <typename T, size_t kN>
const T* FindRange(const T (&ranges)[kN], char32_t character) {
  const T* const found =
      std::lower_bound(std::begin(ranges), std::end(ranges), character,
                       [](const T& range, char32_t c) { return range.last < c; });
  return found != std::end(ranges) && found->first <= character ? found : nullptr;
}

template <size_t kN, size_t kM>
absl::Span<const char32_t> FindMapping(const Mapping (&mappings)[kN],
                                       const char32_t (&characters)[kM], char32_t character) {
  const Mapping* const found =
      std::lower_bound(std::begin(mappings), std::end(mappings), character,
                       [](const Mapping& mapping, char32_t c) { return mapping.character < c; });
  if (found == std::end(mappings) || found->character != character) return {};
  return absl::MakeConstSpan(characters).subspan(found->begin, found->count);
}

// Hangul syllables are composed by arithmetic (chapter 3.12 of the standard).
constexpr char32_t kSyllables = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28;

int ClassOf(char32_t character) {
  const ClassRange* const found = FindRange(kCombiningClasses, character);
  return found == nullptr ? 0 : found->of_class;
}

// Returns 0 if the two do not compose.
char32_t Compose(char32_t first, char32_t second) {
  if (first >= kLead && first < kLead + kLeads && second >= kVowel && second < kVowel + kVowels) {
    return kSyllables + ((first - kLead) * kVowels + (second - kVowel)) * kTrails;
  }
  if (first >= kSyllables && first < kSyllables + kLeads * kVowels * kTrails &&
      (first - kSyllables) % kTrails == 0 && second > kTrail && second < kTrail + kTrails) {
    return first + (second - kTrail);
  }
  const auto key = std::pair(first, second);
  const Composition* const found =
      std::lower_bound(std::begin(kCompositions), std::end(kCompositions), key,
                       [](const Composition& c, const auto& wanted) {
                         return std::pair(c.first, c.second) < wanted;
                       });
  const bool is_found =
      found != std::end(kCompositions) && std::pair(found->first, found->second) == key;
  return is_found ? found->composed : 0;
}

// Kind of decomposition: into characters that look or mean alike (NFKD), or only into equivalent
// ones (NFD).
enum class Form : uint8_t { kCanonical, kCompatible };

void AppendDecomposed(char32_t character, Form form, std::u32string& text) {
  if (character >= kSyllables && character < kSyllables + kLeads * kVowels * kTrails) {
    const char32_t index = character - kSyllables;
    text.push_back(kLead + index / (kVowels * kTrails));
    text.push_back(kVowel + index % (kVowels * kTrails) / kTrails);
    if (index % kTrails != 0) text.push_back(kTrail + index % kTrails);
    return;
  }
  absl::Span<const char32_t> decomposed;
  if (form == Form::kCompatible) {
    decomposed = FindMapping(kCompatibility, kCompatibilityCharacters, character);
  }
  if (decomposed.empty()) {
    decomposed = FindMapping(kDecompositions, kDecompositionsCharacters, character);
  }
  if (decomposed.empty()) {
    text.push_back(character);
  } else {
    text.append(decomposed.begin(), decomposed.end());
  }
}

// Decomposes a text, and sorts the marks on a character by their classes.
std::u32string Decomposed(absl::string_view text, Form form) {
  std::u32string all;
  all.reserve(text.size());
  for (size_t at = 0; at < text.size();) AppendDecomposed(NextCharacter(text, at), form, all);
  for (auto begin = all.begin(); begin != all.end();) {
    if (ClassOf(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, all.end(), [](char32_t c) { return ClassOf(c) == 0; });
    std::stable_sort(begin, end, [](char32_t a, char32_t b) { return ClassOf(a) < ClassOf(b); });
    begin = end;
  }
  return all;
}

std::string Utf8Of(const std::u32string& characters) {
  std::string text;
  for (const char32_t character : characters) AppendCharacter(character, text);
  return text;
}

// Composes a decomposed text again where possible.
std::string Composed(const std::u32string& all) {
  std::u32string composed;
  size_t starter = std::u32string::npos;  // in `composed`: the character that marks may join
  int last_class = 0;                     // that of the character that follows it
  for (const char32_t character : all) {
    const int of_class = ClassOf(character);
    if (starter != std::u32string::npos) {
      const bool is_next = composed.size() == starter + 1;
      const char32_t joined =
          is_next || last_class < of_class ? Compose(composed[starter], character) : 0;
      if (joined != 0) {
        composed[starter] = joined;
        continue;
      }
    }
    if (of_class == 0) starter = composed.size();
    last_class = of_class;
    composed.push_back(character);
  }
  return Utf8Of(composed);
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isascii(static_cast<unsigned char>(c)); });
}

// Returns the characters of a text that are in none of these ranges.
template <size_t kN>
std::string Without(const Range (&ranges)[kN], absl::string_view text) {
  std::string kept;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = NextCharacter(text, at);
    if (FindRange(ranges, character) == nullptr) AppendCharacter(character, kept);
  }
  return kept;
}

size_t LastCharacter(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
bool IsWordCharacter(char32_t character) { return FindRange(kWord, character) != nullptr; }
bool IsNumeric(char32_t character) { return FindRange(kNumeric, character) != nullptr; }
bool IsPunctuation(char32_t character) { return FindRange(kPunctuation, character) != nullptr; }
bool IsControl(char32_t character) { return FindRange(kOther, character) != nullptr; }
bool IsChinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

char32_t NextCharacter(absl::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at++]);
  if (lead < 0x80) return lead;
  const int tails = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t character = lead & (0x3F >> tails);
  for (int i = 0; i < tails; ++i) {
    character = character << 6 | (static_cast<uint8_t>(text[at++]) & 0x3F);
  }
  return character;
}

bool EndsInWordCharacter(absl::string_view text) {
  if (text.empty()) return false;
  size_t at = LastCharacter(text);
  return IsWordCharacter(NextCharacter(text, at));
}

bool BeginsWithWordCharacter(absl::string_view text) {
  size_t at = 0;
  return !text.empty() && IsWordCharacter(NextCharacter(text, at));
}

absl::string_view WithoutLeadingSpace(absl::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && IsWhiteSpace(NextCharacter(text, at));) begin = at;
  return text.substr(begin);
}

absl::string_view WithoutTrailingSpace(absl::string_view text) {
  while (!text.empty()) {
    const size_t last = LastCharacter(text);
    size_t at = last;
    if (!IsWhiteSpace(NextCharacter(text, at))) break;
    text = text.substr(0, last);
  }
  return text;
}

void AppendCharacter(char32_t c, std::string& text) {
  const auto tail = [&](int shift) {
    text.push_back(static_cast<char>(0x80 | (c >> shift & 0x3F)));
  };
  if (c < 0x80) {
    text.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    text.push_back(static_cast<char>(0xC0 | c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | c >> 12));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0 | c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string ToNfd(absl::string_view text) {
  return IsAscii(text) ? std::string(text) : Utf8Of(Decomposed(text, Form::kCanonical));
}
std::string ToNfc(absl::string_view text) {
  return IsAscii(text) ? std::string(text) : Composed(Decomposed(text, Form::kCanonical));
}
std::string ToNfkd(absl::string_view text) {
  return IsAscii(text) ? std::string(text) : Utf8Of(Decomposed(text, Form::kCompatible));
}
std::string ToNfkc(absl::string_view text) {
  return IsAscii(text) ? std::string(text) : Composed(Decomposed(text, Form::kCompatible));
}

std::string WithoutMarks(absl::string_view text) { return Without(kMark, text); }
std::string WithoutBertMarks(absl::string_view text) { return Without(kBertMark, text); }

std::string ToLowercase(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToLower(text);
  std::string lower;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = NextCharacter(text, at);
    const auto found = FindMapping(kLowercase, kLowercaseCharacters, character);
    if (found.empty()) AppendCharacter(character, lower);
    for (const char32_t c : found) AppendCharacter(c, lower);
  }
  return lower;
}

std::vector<CharacterRange> LettersOfPatterns() {
  return {std::begin(kPatternLetter), std::end(kPatternLetter)};
}
std::vector<CharacterRange> NumbersOfPatterns() {
  return {std::begin(kPatternNumber), std::end(kPatternNumber)};
}

}  // namespace stagecoach::engine
