#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/tokenizer/split_pattern.h"

#include <pcre2.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/tokenizer/characters.h"

namespace stagecoach::engine {

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// Returns those characters of the ranges that a newer Unicode than PCRE2's has in that category,
// written as the contents of a character class.
std::string FindNewer(const char* category, const std::vector<CharacterRange>& ranges) {
  int error = 0;
  size_t offset = 0;
  const std::string pattern = absl::StrCat("\\p{", category, "}+");
  pcre2_code_8* const code =
      pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
  pcre2_match_data_8* const data = pcre2_match_data_create_8(1, nullptr);
  std::string newer;
  for (const auto& [first, last] : ranges) {
    std::string text;
    for (char32_t c = first; c <= last; ++c) AppendCharacter(c, text);
    char32_t begin = first;  // of the unknown characters
    char32_t next = first;
    for (size_t at = 0; at <= text.size();) {
      const int result = at == text.size()
                             ? 0
                             : pcre2_match_8(code, reinterpret_cast<PCRE2_SPTR8>(text.data()),
                                             text.size(), at, PCRE2_NO_UTF_CHECK, data, nullptr);
      if (result < 0) {
        next = NextCharacter(text, at) + 1;
        continue;
      }
      if (next > begin) {
        absl::StrAppend(&newer, "\\x{", absl::Hex(uint32_t{begin}), "}-\\x{",
                        absl::Hex(uint32_t{next - 1}), "}");
      }
      if (at == text.size()) break;
      const size_t end = pcre2_get_ovector_pointer_8(data)[1];
      while (at < end) next = NextCharacter(text, at) + 1;
      begin = next;
    }
  }
  pcre2_match_data_free_8(data);
  pcre2_code_free_8(code);
  return newer;
}

// Returns "" if there are none, or the category is neither letters nor numbers.
absl::string_view NewerOf(absl::string_view category) {
  static const std::string* const letters = new std::string(FindNewer("L", LettersOfPatterns()));
  static const std::string* const numbers = new std::string(FindNewer("N", NumbersOfPatterns()));
  return category == "L" ? *letters : category == "N" ? *numbers : absl::string_view();
}

// Rewrites a pattern for PCRE2, or refuses it.
class PatternTranslator {
 public:
  explicit PatternTranslator(absl::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    while (!rest_.empty()) {
      RETURN_IF_ERROR(in_class_ ? TakeInClass() : Take());
    }
    return std::move(translated_);
  }

 private:
  void Copy(size_t bytes) {
    absl::StrAppend(&translated_, rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
  }

  absl::Status Refuse(size_t bytes) const {
    return base::DataError(
        absl::StrCat("a pattern with \"", rest_.substr(0, bytes), "\" is not supported"));
  }

  // Called at the backslash.
  absl::Status TakeEscape() {
    if (rest_.size() < 2) return Refuse(1);
    const char escaped = rest_[1];
    switch (escaped) {
      case 's':
      case 'S':
        // PCRE2's own \s also has U+180E.
        absl::StrAppend(&translated_, escaped == 's' ? "\\p" : "\\P", "{White_Space}");
        rest_.remove_prefix(2);
        return absl::OkStatus();
      case 'p':
      case 'P':
        return TakeProperty();
      default:
        if (!absl::StrContains("dDrntf", absl::string_view(&escaped, 1)) &&
            !absl::ascii_ispunct(static_cast<unsigned char>(escaped))) {
          return Refuse(2);
        }
        Copy(2);
        return absl::OkStatus();
    }
  }

  // Takes \p{Lu}, a category, or \p{Han}, a script: by that name alone, PCRE2 would take what is
  // also used in other scripts.
  absl::Status TakeProperty() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == absl::string_view::npos) return Refuse(2);
    const absl::string_view name = rest_.substr(3, end - 3);
    for (const char letter : name) {
      if (!absl::ascii_isalpha(static_cast<unsigned char>(letter))) return Refuse(end + 1);
    }
    const absl::string_view newer = rest_[1] == 'p' || !in_class_ ? NewerOf(name) : "";
    const bool is_class = !newer.empty() && !in_class_;
    if (is_class) absl::StrAppend(&translated_, rest_[1] == 'p' ? "[" : "[^");
    absl::StrAppend(&translated_, "\\", is_class ? "p" : rest_.substr(1, 1), "{",
                    name.size() > 2 ? "sc:" : "", name, "}", newer, is_class ? "]" : "");
    rest_.remove_prefix(end + 1);
    return absl::OkStatus();
  }

  absl::Status Take() {
    switch (rest_.front()) {
      case '\\':
        return TakeEscape();
      case '[':
        in_class_ = true;
        Copy(absl::StartsWith(rest_, "[^") ? 2 : 1);
        // One of the two does not accept an empty class.
        return absl::StartsWith(rest_, "]") ? Refuse(1) : absl::OkStatus();
      case '(':
        if (!absl::StartsWith(rest_, "(?")) {
          if (absl::StartsWith(rest_, "(*")) return Refuse(2);
          break;
        }
        for (const char* group : {"(?:", "(?i:", "(?>", "(?=", "(?!"}) {
          if (!absl::StartsWith(rest_, group)) continue;
          Copy(absl::string_view(group).size());
          return absl::OkStatus();
        }
        return Refuse(3);
      case '^':
        return Refuse(1);
      case '$':
        // Oniguruma's $ is the end of a line.
        absl::StrAppend(&translated_, "(?m:$)");
        rest_.remove_prefix(1);
        return absl::OkStatus();
      case '}':
        if (absl::StartsWith(rest_, "}+")) return Refuse(2);
        break;
      default:
        break;
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status TakeInClass() {
    if (rest_.front() == '\\') return TakeEscape();
    if (rest_.front() == '[') return Refuse(1);
    if (absl::StartsWith(rest_, "&&")) return Refuse(2);
    in_class_ = rest_.front() != ']';
    Copy(1);
    return absl::OkStatus();
  }

  absl::string_view rest_;
  std::string translated_;
  bool in_class_ = false;
};

}  // namespace

absl::StatusOr<SplitPattern> SplitPattern::Compile(absl::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, PatternTranslator(pattern).Translate());
  int error = 0;
  size_t offset = 0;
  pcre2_code_8* const code =
      pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    unsigned char message[256] = "";
    pcre2_get_error_message_8(error, message, sizeof(message));
    return base::DataError(
        absl::StrCat("the pattern ", translated, ": ", reinterpret_cast<const char*>(message)));
  }
  const std::shared_ptr<const pcre2_code_8> owner(
      code, [](const pcre2_code_8* c) { pcre2_code_free_8(const_cast<pcre2_code_8*>(c)); });
  uint32_t matches_nothing = 0;
  pcre2_pattern_info_8(code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0) {
    return base::DataError(
        absl::StrCat("the pattern ", pattern, " can match nothing, expected one that cannot"));
  }
  // If PCRE2 has no compiler for this processor, it interprets the pattern.
  pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return SplitPattern(owner);
}

struct SplitPattern::Matcher::State {
  explicit State(std::shared_ptr<const pcre2_code_8> the_code)
      : code(std::move(the_code)),
        data(pcre2_match_data_create_8(1, nullptr)),
        context(pcre2_match_context_create_8(nullptr)),
        stack(pcre2_jit_stack_create_8(32 << 10, 16 << 20, nullptr)) {
    pcre2_jit_stack_assign_8(context, nullptr, stack);
  }
  ~State() {
    pcre2_jit_stack_free_8(stack);
    pcre2_match_context_free_8(context);
    pcre2_match_data_free_8(data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::shared_ptr<const pcre2_code_8> code;
  pcre2_match_data_8* const data;
  pcre2_match_context_8* const context;
  pcre2_jit_stack_8* const stack;
};

SplitPattern::Matcher::Matcher(const SplitPattern& pattern)
    : state_(std::make_unique<State>(pattern.code_)) {}
SplitPattern::Matcher::~Matcher() = default;
SplitPattern::Matcher::Matcher(Matcher&& other) noexcept = default;

absl::StatusOr<SplitPattern::Matcher::Result> SplitPattern::Matcher::Find(absl::string_view text,
                                                                          size_t from,
                                                                          bool is_whole) {
  const uint32_t options = PCRE2_NO_UTF_CHECK | (is_whole ? 0 : PCRE2_PARTIAL_HARD);
  const int result = pcre2_match_8(state_->code.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()),
                                   text.size(), from, options, state_->data, state_->context);
  if (result >= 0) return Result::kFound;
  if (result == PCRE2_ERROR_PARTIAL) return Result::kNeedsMore;
  if (result == PCRE2_ERROR_NOMATCH) return is_whole ? Result::kNone : Result::kNeedsMore;
  unsigned char message[256] = "";
  pcre2_get_error_message_8(result, message, sizeof(message));
  return base::DataError(absl::StrCat("a search by the tokenizer's pattern fails: ",
                                      reinterpret_cast<const char*>(message)),
                         absl::StatusCode::kResourceExhausted);
}

size_t SplitPattern::Matcher::begin() const { return pcre2_get_ovector_pointer_8(state_->data)[0]; }

size_t SplitPattern::Matcher::end() const { return pcre2_get_ovector_pointer_8(state_->data)[1]; }

}  // namespace stagecoach::engine
