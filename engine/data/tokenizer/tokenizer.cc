#include "engine/data/tokenizer/tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/line.h"
#include "base/text/utf8.h"
#include "engine/data/tokenizer/sentencepiece_tokenizer.h"
#include "engine/data/tokenizer/text_pipeline.h"

namespace stagecoach::engine {
namespace {

// The file of a vocabulary of 256,000 is 20 MB.
constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;
// Bytes of text that are encoded at a time.
constexpr size_t kWindowBytes = size_t{256} << 10;

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const std::string& path,
                                                          absl::string_view contents) {
  if (absl::EndsWith(path, ".json")) return ParsePipeline(contents);
  if (absl::EndsWith(path, ".model")) return ParseSentencePiece(contents);
  return base::DataError("expected the name of a tokenizer.json or of SentencePiece's .model");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path) {
  absl::StatusOr<std::string> contents = base::ReadFile(path, kMaxTokenizerBytes);
  RETURN_IF_ERROR(contents.status());
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ParseTokenizer(path, *contents);
  if (!tokenizer.ok()) {
    return base::InFile(base::DataError(tokenizer.status().message()), path);
  }
  (*tokenizer)->hash_ = base::HashOf(*contents);
  return std::shared_ptr<const Tokenizer>(*std::move(tokenizer));
}

absl::string_view Tokenizer::BytesOf(int32_t id) const {
  const bool is_known = id >= 0 && static_cast<size_t>(id) < tokens_.size();
  return is_known ? absl::string_view(tokens_[static_cast<size_t>(id)]) : absl::string_view();
}

absl::Status Tokenizer::Encode(absl::string_view text, Take take) const {
  const std::unique_ptr<Encoder> encoder = MakeEncoder();
  std::vector<int32_t> ids;
  size_t done = 0;
  size_t checked = 0;  // the text before this is UTF-8
  size_t window = kWindowBytes;
  bool is_last = false;
  while (!is_last) {
    const size_t end = done + std::min(window, text.size() - done);
    if (end > checked) checked += base::Utf8Prefix(text.substr(checked, end - checked));
    // A character may continue behind the window, but it lacks at most three bytes.
    if (checked < end && (end == text.size() || end - checked > 3)) {
      return base::NotUtf8(text, checked);
    }
    is_last = checked == text.size();
    absl::StatusOr<size_t> encoded =
        encoder->Encode(text.substr(done, checked - done), is_last, ids);
    RETURN_IF_ERROR(base::Annotate(encoded.status(), absl::StrCat("from offset ", done, " on")));
    if (*encoded == 0 && !is_last) {
      if (window >= kLongestPart) {
        return base::DataError(absl::StrCat("from offset ", done, " on, there is no place in ",
                                            window, " bytes at which the text could be divided"),
                               absl::StatusCode::kResourceExhausted);
      }
      window *= 2;
      continue;
    }
    done += *encoded;
    window = kWindowBytes;
    RETURN_IF_ERROR(take(ids, done));
    ids.clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text) const {
  std::vector<int32_t> all;
  RETURN_IF_ERROR(Encode(text, [&](absl::Span<const int32_t> ids, size_t /*encoded_bytes*/) {
    all.insert(all.end(), ids.begin(), ids.end());
    return absl::OkStatus();
  }));
  return all;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids) const {
  TextDecoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.Append(id);
  return text + decoder.Finish();
}

std::string TextDecoder::Append(int32_t id) {
  absl::string_view bytes = tokenizer_.BytesOf(id);
  if (is_first_ && !bytes.empty()) {
    if (tokenizer_.drops_first_space() && bytes.front() == ' ') bytes.remove_prefix(1);
    is_first_ = false;
  }
  kept_.append(bytes.data(), bytes.size());
  return TakeCharacters(false);
}

std::string TextDecoder::Finish() { return TakeCharacters(true); }

std::string TextDecoder::TakeCharacters(bool is_last) {
  constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
  std::string characters;
  absl::string_view rest = kept_;
  while (!rest.empty()) {
    const size_t whole = base::Utf8Prefix(rest);
    absl::StrAppend(&characters, rest.substr(0, whole));
    rest.remove_prefix(whole);
    if (rest.empty()) break;
    const base::Utf8Front front = base::FrontOf(rest);
    if (front.kind == base::Utf8Front::Kind::kCut && !is_last) break;
    absl::StrAppend(&characters, kReplacement);
    rest.remove_prefix(front.bytes);
  }
  kept_.erase(0, kept_.size() - rest.size());
  return characters;
}

}  // namespace stagecoach::engine
