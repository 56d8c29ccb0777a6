#include "base/text/json.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/text/line.h"
#include "base/text/utf8.h"

namespace stagecoach::base {
namespace {

// Returns where the string literal that ends just before `end` starts: at the last quote that is
// not preceded by an odd number of backslashes.
size_t StartOfString(absl::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0) {
    start = text.rfind('"', start - 1);
    size_t backslashes = 0;
    while (backslashes < start && text[start - 1 - backslashes] == '\\') ++backslashes;
    if (backslashes % 2 == 0) break;
  }
  return start;
}

// Walks the text for the parser and reports its position through `*position`, because the parser
// does not tell its callbacks the location.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* current, const char** position)
      : current_(current), position_(position) {}

  reference operator*() const { return *current_; }
  TrackedIterator& operator++() {
    *position_ = ++current_;
    return *this;
  }
  TrackedIterator operator++(int) {
    const TrackedIterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const TrackedIterator& a, const TrackedIterator& b) {
    return a.current_ == b.current_;
  }
  friend bool operator!=(const TrackedIterator& a, const TrackedIterator& b) { return !(a == b); }

 private:
  const char* current_;
  const char** position_;
};

// Builds the value from the events of nlohmann's parser. That parser keeps its own stack, so depth
// costs no recursion; and it reports through these callbacks, so nothing throws.
class StrictBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictBuilder(absl::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  absl::StatusOr<nlohmann::json> Build() {
    const TrackedIterator begin(text_.data(), &position_);
    const TrackedIterator end(text_.data() + text_.size(), &position_);
    nlohmann::json::sax_parse(begin, end, this);
    if (!status_.ok()) return status_;
    return std::move(root_);
  }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& value) override { return Add(std::move(value)); }
  bool start_object(size_t) override { return Open(nlohmann::json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(nlohmann::json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    auto& object = open_.back()->get_ref<nlohmann::json::object_t&>();
    const auto [member, inserted] = object.emplace(key, nullptr);
    if (!inserted) {
      return Fail(absl::StatusCode::kInvalidArgument, StartOfString(text_, Consumed()),
                  absl::StrCat("duplicate key \"", absl::CHexEscape(key), "\""));
    }
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t chars_read, const std::string&,
                   const nlohmann::json::exception& error) override {
    // The count includes the offending character; the end of the text counts as one.
    const size_t offset = std::min(text_.size(), std::max<size_t>(chars_read, 1) - 1);
    return Fail(absl::StatusCode::kInvalidArgument, offset, Describe(error));
  }

 private:
  size_t Consumed() const { return static_cast<size_t>(position_ - text_.data()); }

  // Returns the library's message without its own tag and location and without the quoted input,
  // which may be of any length and not even UTF-8.
  static std::string Describe(const nlohmann::json::exception& error) {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) return "the number does not fit in a double";
    absl::string_view message = error.what();
    const size_t location_end = message.find(": ");
    if (location_end != absl::string_view::npos) message.remove_prefix(location_end + 2);
    return std::string(message.substr(0, message.find("; last read: ")));
  }

  bool Fail(absl::StatusCode code, size_t offset, absl::string_view message) {
    status_ = absl::Status(code, absl::StrCat(PlaceIn(text_, offset), ": ", message));
    return false;
  }

  nlohmann::json& Place(nlohmann::json value) {
    if (open_.empty()) return root_ = std::move(value);
    nlohmann::json& parent = *open_.back();
    if (parent.is_object()) return *member_ = std::move(value);
    return parent.get_ref<nlohmann::json::array_t&>().emplace_back(std::move(value));
  }

  bool Add(nlohmann::json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(nlohmann::json container) {
    if (open_.size() >= static_cast<size_t>(std::max(limits_.max_depth, 0))) {
      return Fail(absl::StatusCode::kResourceExhausted, Consumed() - 1,
                  absl::StrCat("nested deeper than the limit of ", limits_.max_depth, " levels"));
    }
    // This pointer stays valid: an array grows only after its last element is closed.
    open_.push_back(&Place(std::move(container)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const absl::string_view text_;
  const JsonLimits limits_;
  const char* position_ = text_.data();
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  nlohmann::json* member_ = nullptr;  // of the innermost object: where its next value goes
  absl::Status status_;
};

}  // namespace

bool IsUtf8(absl::string_view text) { return Utf8Prefix(text) == text.size(); }

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "JSON text of ", text.size(), " bytes exceeds the limit of ", limits.max_bytes));
  }
  // nlohmann's parser takes a NUL for the end of the text and would ignore everything after it.
  const size_t nul = text.find('\0');
  if (nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(PlaceIn(text, nul), ": NUL byte"));
  }
  return StrictBuilder(text, limits).Build();
}

}  // namespace stagecoach::base
