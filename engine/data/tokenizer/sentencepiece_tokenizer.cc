#include "engine/data/tokenizer/sentencepiece_tokenizer.h"

#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/tokenizer/piece_model.h"
#include "engine/data/tokenizer/sentencepiece/model.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kSpace = "\xE2\x96\x81";      // U+2581
constexpr absl::string_view kUnknown = " \xE2\x81\x87 ";  // U+2047, as the library writes it

std::string_view Std(absl::string_view text) { return {text.data(), text.size()}; }

// Returns what the token stands for.
std::string SentencePieceBytes(const SentencePieceModel& model, int32_t id) {
  if (model.IsControl(id)) return "";
  if (model.IsUnknown(id)) return std::string(kUnknown);
  const std::string piece = model.Piece(id);
  uint32_t byte = 0;
  if (model.IsByte(id) && absl::SimpleHexAtoi(piece.substr(1, piece.size() - 2), &byte)) {
    return {static_cast<char>(byte)};
  }
  return absl::StrReplaceAll(piece, {{kSpace, " "}});
}

// Returns whether there is a letter or digit that is no mark on what precedes it, and stands for no
// space: in ASCII, a Latin, Greek or Cyrillic letter, or a Chinese or Korean one.
bool IsPlain(absl::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte == 0xCE) return at + 1 < text.size() && static_cast<uint8_t>(text[at + 1]) >= 0x86;
  return absl::ascii_isalnum(byte) || (byte >= 0xC3 && byte <= 0xCA) ||
         (byte >= 0xCF && byte <= 0xD1) || (byte >= 0xE4 && byte <= 0xEC);
}

// Returns whether such a character, or ASCII punctuation, precedes `end`, which is not 0.
bool IsWordEnd(absl::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return IsPlain(text, at) || absl::ascii_ispunct(static_cast<unsigned char>(text[at]));
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `can_divide`: a text that is encoded in parts, each without the space in front of it, becomes
  // the same as all at once.
  SentencePieceTokenizer(std::unique_ptr<const SentencePieceModel> model,
                         std::vector<std::string> tokens, bool adds_space, bool can_divide)
      : Tokenizer(std::move(tokens),
                  model->end_of_text() < 0 ? std::nullopt : std::optional(model->end_of_text()),
                  adds_space),
        model_(std::move(model)),
        can_divide_(can_divide) {}

 private:
  class PieceEncoder;
  std::unique_ptr<Encoder> MakeEncoder() const override;

  const std::unique_ptr<const SentencePieceModel> model_;
  const bool can_divide_;
};

class SentencePieceTokenizer::PieceEncoder final : public Encoder {
 public:
  PieceEncoder(const SentencePieceModel& model, bool can_divide)
      : model_(model), can_divide_(can_divide) {}

  absl::StatusOr<size_t> Encode(absl::string_view text, bool is_last,
                                std::vector<int32_t>& ids) override {
    size_t done = 0;
    while (done < text.size()) {
      const absl::string_view rest = text.substr(done);
      size_t end = can_divide_ ? LastGap(rest.substr(0, kUsualBytes)) : 0;
      if (end == 0 && is_last) end = rest.size();
      if (end == 0 && can_divide_) end = LastGap(rest);
      if (end == 0) break;
      RETURN_IF_ERROR(EncodePart(rest.substr(0, end), ids));
      done += end;
    }
    return done;
  }

 private:
  // The library is faster on short texts.
  static constexpr size_t kUsualBytes = size_t{4} << 10;

  // `part`: the beginning of the text, or else a space and words.
  absl::Status EncodePart(absl::string_view part, std::vector<int32_t>& ids) {
    // The library puts a space in front of its input.
    if (has_begun_) part.remove_prefix(1);
    has_begun_ = true;
    std::vector<int32_t> part_ids;
    if (!model_.Encode(Std(part), part_ids)) {
      return absl::InternalError("SentencePiece does not divide the text");
    }
    if (part_ids.empty()) return absl::OkStatus();
    // The library merges consecutive unknown characters into one.
    const bool goes_on = ends_unknown_ && model_.IsUnknown(part_ids.front());
    ids.insert(ids.end(), part_ids.begin() + (goes_on ? 1 : 0), part_ids.end());
    ends_unknown_ = model_.IsUnknown(part_ids.back());
    return absl::OkStatus();
  }

  // Returns the last space between two words where no normalization joins it with its neighbors. 0:
  // there is none.
  static size_t LastGap(absl::string_view text) {
    for (size_t i = text.size() < 2 ? 0 : text.size() - 2; i > 1; --i) {
      if (text[i] == ' ' && IsPlain(text, i + 1) && IsWordEnd(text, i)) return i;
    }
    return 0;
  }

  const SentencePieceModel& model_;
  const bool can_divide_;
  bool has_begun_ = false;
  bool ends_unknown_ = false;
};

std::unique_ptr<Tokenizer::Encoder> SentencePieceTokenizer::MakeEncoder() const {
  return std::make_unique<PieceEncoder>(*model_, can_divide_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSentencePiece(absl::string_view model) {
  auto library = std::make_unique<SentencePieceModel>();
  if (!library->Load(Std(model))) {
    return base::DataError("not a model that SentencePiece can read");
  }
  std::vector<std::string> tokens;
  bool crosses_words = false;
  for (int32_t id = 0; id < library->size(); ++id) {
    tokens.push_back(SentencePieceBytes(*library, id));
    crosses_words = crosses_words || CrossesWords(library->Piece(id), kSpace);
  }
  std::vector<int32_t> ids;
  if (!library->Encode("a", ids) || ids.empty()) {
    return base::DataError("a model of SentencePiece that cannot encode \"a\"");
  }
  const bool adds_space = absl::StartsWith(library->Piece(ids.front()), kSpace);
  return std::make_unique<SentencePieceTokenizer>(std::move(library), std::move(tokens), adds_space,
                                                  adds_space && !crosses_words);
}

}  // namespace stagecoach::engine
