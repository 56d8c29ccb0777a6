#include "engine/data/tokenizer/normalizer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/data/tokenizer/characters.h"

namespace stagecoach::engine {
namespace {

std::string CleanText(absl::string_view text) {
  std::string clean;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = NextCharacter(text, at);
    if (character == 0 || character == 0xFFFD || IsControl(character)) continue;
    AppendCharacter(IsWhiteSpace(character) ? U' ' : character, clean);
  }
  return clean;
}

std::string SpaceChinese(absl::string_view text) {
  std::string spaced;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = NextCharacter(text, at);
    const bool is_chinese = IsChinese(character);
    if (is_chinese) spaced.push_back(' ');
    AppendCharacter(character, spaced);
    if (is_chinese) spaced.push_back(' ');
  }
  return spaced;
}

}  // namespace

std::string Normalizer::Apply(absl::string_view text, bool is_front) const {
  std::string result(text);
  for (const auto& [kind, from, to] : steps_) {
    switch (kind) {
      case Step::Kind::kNfc:
        result = ToNfc(result);
        break;
      case Step::Kind::kNfd:
        result = ToNfd(result);
        break;
      case Step::Kind::kNfkc:
        result = ToNfkc(result);
        break;
      case Step::Kind::kNfkd:
        result = ToNfkd(result);
        break;
      case Step::Kind::kLowercase:
        result = ToLowercase(result);
        break;
      case Step::Kind::kStripAccents:
        result = WithoutMarks(result);
        break;
      case Step::Kind::kStripBertAccents:
        result = WithoutBertMarks(result);
        break;
      case Step::Kind::kCleanText:
        result = CleanText(result);
        break;
      case Step::Kind::kSpaceChinese:
        result = SpaceChinese(result);
        break;
      case Step::Kind::kReplace:
        result = absl::StrReplaceAll(result, {{from, to}});
        break;
      case Step::Kind::kPrepend:
        if (is_front && !result.empty()) result = absl::StrCat(to, result);
        break;
    }
  }
  return result;
}

bool Normalizer::MayDropTheFirst() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.kind == Step::Kind::kStripAccents || step.kind == Step::Kind::kStripBertAccents ||
           step.kind == Step::Kind::kCleanText ||
           (step.kind == Step::Kind::kReplace && step.to.empty());
  });
}

// No character combines with an ASCII character that follows it, and what is replaced is one
// character, or contains no line end.
size_t Normalizer::PlaceToDivide(absl::string_view text) const {
  const bool any_ascii = std::all_of(steps_.begin(), steps_.end(),
                                     [](const Step& step) { return step.from.size() <= 1; });
  if (!any_ascii) {
    const bool has_line_end = std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
      return step.from.find('\n') != std::string::npos;
    });
    const size_t line_end = text.rfind('\n');
    return has_line_end || line_end == absl::string_view::npos ? 0 : line_end;
  }
  for (size_t i = text.size(); i-- > 1;) {
    if (absl::ascii_isascii(static_cast<unsigned char>(text[i]))) return i;
  }
  return 0;
}

}  // namespace stagecoach::engine
