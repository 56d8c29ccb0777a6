#include "engine/data/tokenizer/byte_level_bpe.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

// What pieces have become, since most of a text are the same few. Forgets all where it is full.
class PieceCache {
 public:
  // Null: not known.
  const absl::Span<const int32_t>* Find(absl::string_view piece) {
    const auto found = places_.find(piece);
    if (found == places_.end()) return nullptr;
    found_ = absl::MakeConstSpan(ids_).subspan(found->second.first, found->second.count);
    return &found_;
  }

  void Add(absl::string_view piece, absl::Span<const int32_t> ids) {
    if (piece.size() > kLongestPiece) return;
    if (places_.size() == kMostPieces) {
      places_.clear();
      ids_.clear();
    }
    places_.emplace(piece, Place{ids_.size(), ids.size()});
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr size_t kMostPieces = size_t{1} << 17;
  static constexpr size_t kLongestPiece = 64;
  struct Place {
    size_t first, count;
  };
  absl::flat_hash_map<std::string, Place> places_;
  std::vector<int32_t> ids_;
  absl::Span<const int32_t> found_;
};

class ByteLevelBpeTokenizer final : public Tokenizer {
 public:
  ByteLevelBpeTokenizer(ByteLevelBpe bpe, std::vector<std::string> tokens)
      : Tokenizer(std::move(tokens), bpe.end_of_text, /*drops_first_space=*/false),
        bpe_(std::move(bpe)) {}

 private:
  class BpeEncoder;
  std::unique_ptr<Encoder> MakeEncoder() const override;

  const ByteLevelBpe bpe_;
};

// The functions take what they can of a text, unless it `is_whole`, and return its bytes.
class ByteLevelBpeTokenizer::BpeEncoder final : public Encoder {
 public:
  explicit BpeEncoder(const ByteLevelBpe& bpe) : bpe_(bpe) {
    for (const SplitPattern& pattern : bpe.patterns) matchers_.emplace_back(pattern);
  }

  absl::StatusOr<size_t> Encode(absl::string_view text, bool is_last,
                                std::vector<int32_t>& ids) override {
    if (!has_begun_) ids.insert(ids.end(), bpe_.before_text.begin(), bpe_.before_text.end());
    has_begun_ = true;
    ids_ = &ids;
    return TakeSections(0, text, is_last);
  }

 private:
  // Between added tokens of that level.
  absl::StatusOr<size_t> TakeSections(size_t level, absl::string_view text, bool is_whole) {
    if (level == bpe_.added.size()) return TakeSection(text, is_whole);
    const AddedTokens& added = bpe_.added[level];
    size_t done = 0;
    while (done < text.size()) {
      const absl::string_view rest = text.substr(done);
      const size_t known = is_whole ? rest.size() : added.OpenAt(rest);
      const AddedTokens::Found found = added.Find(rest);
      if (found.begin >= known) {
        ASSIGN_OR_RETURN(const size_t taken, TakeSections(level + 1, rest.substr(0, known),
                                                          is_whole && known == rest.size()));
        return done + taken;
      }
      RETURN_IF_ERROR(TakeSections(level + 1, rest.substr(0, found.begin), true).status());
      ids_->push_back(found.id);
      is_at_start_ = true;
      done += found.begin + found.bytes;
    }
    return done;
  }

  absl::StatusOr<size_t> TakeSection(absl::string_view text, bool is_whole) {
    if (text.empty()) return 0;
    if (!bpe_.adds_prefix_space || !is_at_start_ || text.front() == ' ') {
      ASSIGN_OR_RETURN(const size_t taken, Split(0, text, is_whole));
      if (taken > 0) is_at_start_ = false;
      return taken;
    }
    const std::string prefixed = " " + std::string(text);
    ASSIGN_OR_RETURN(const size_t taken, Split(0, prefixed, is_whole));
    // Where this is the space alone, the text goes on without it.
    if (taken == 0) return 0;
    is_at_start_ = false;
    return taken - 1;
  }

  absl::StatusOr<size_t> Split(size_t index, absl::string_view text, bool is_whole) {
    if (index == matchers_.size()) {
      if (!is_whole) return 0;
      TakePiece(text);
      return text.size();
    }
    using Result = SplitPattern::Matcher::Result;
    SplitPattern::Matcher& matcher = matchers_[index];
    size_t done = 0;
    while (done < text.size()) {
      ASSIGN_OR_RETURN(const Result result, matcher.Find(text, done, is_whole));
      if (result == Result::kNeedsMore) return done;
      const bool is_found = result == Result::kFound;
      const size_t begin = is_found ? matcher.begin() : text.size();
      const size_t end = is_found ? matcher.end() : text.size();
      for (const absl::string_view piece :
           {text.substr(done, begin - done), text.substr(begin, end - begin)}) {
        if (!piece.empty()) RETURN_IF_ERROR(Split(index + 1, piece, true).status());
      }
      done = end;
    }
    return done;
  }

  void TakePiece(absl::string_view piece) {
    if (const absl::Span<const int32_t>* known = cache_.Find(piece); known != nullptr) {
      ids_->insert(ids_->end(), known->begin(), known->end());
      return;
    }
    symbols_.clear();
    const auto whole = bpe_.whole_pieces.find(piece);
    if (whole != bpe_.whole_pieces.end()) {
      symbols_.push_back(whole->second);
    } else {
      for (const char byte : piece) symbols_.push_back(bpe_.symbols[static_cast<uint8_t>(byte)]);
      bpe_.merges.Apply(symbols_, scratch_);
    }
    cache_.Add(piece, symbols_);
    ids_->insert(ids_->end(), symbols_.begin(), symbols_.end());
  }

  const ByteLevelBpe& bpe_;
  std::vector<SplitPattern::Matcher> matchers_;
  PieceCache cache_;
  BpeMerges::Scratch scratch_;
  std::vector<int32_t> symbols_;
  std::vector<int32_t>* ids_ = nullptr;
  bool has_begun_ = false;
  bool is_at_start_ = true;  // of the text, or of what follows an added token
};

std::unique_ptr<Tokenizer::Encoder> ByteLevelBpeTokenizer::MakeEncoder() const {
  return std::make_unique<BpeEncoder>(bpe_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseByteLevelBpe(absl::string_view text) {
  ASSIGN_OR_RETURN(ByteLevelBpe bpe, ParseTokenizerJson(text));
  std::vector<std::string> tokens = std::move(bpe.tokens);
  return std::make_unique<ByteLevelBpeTokenizer>(std::move(bpe), std::move(tokens));
}

}  // namespace stagecoach::engine
