#include "engine/data/tokenizer/text_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/tokenizer/characters.h"

namespace stagecoach::engine {
namespace {

// Remembers the ids of pieces, since most of a text consists of the same few. Forgets everything
// when it is full.
class PieceCache {
 public:
  // Returns null if the piece is unknown.
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

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(TextPipeline pipeline, std::vector<std::string> tokens)
      : Tokenizer(std::move(tokens), pipeline.end_of_text, pipeline.drops_first_space),
        pipeline_(std::move(pipeline)) {}

 private:
  class PipelineEncoder;
  std::unique_ptr<Encoder> MakeEncoder() const override;

  const TextPipeline pipeline_;
};

// The functions take as much of a text as they can (all, if it `is_whole`), and return the number
// of bytes.
class PipelineTokenizer::PipelineEncoder final : public Encoder {
 public:
  explicit PipelineEncoder(const TextPipeline& pipeline) : pipeline_(pipeline) {
    for (const SplitStep& step : pipeline.splits) {
      matchers_.push_back(step.pattern.has_value()
                              ? std::make_unique<SplitPattern::Matcher>(*step.pattern)
                              : nullptr);
    }
  }

  absl::StatusOr<size_t> Encode(absl::string_view text, bool is_last,
                                std::vector<int32_t>& ids) override {
    const std::vector<int32_t>& before = pipeline_.before_text;
    const std::vector<int32_t>& behind = pipeline_.behind_text;
    if (!has_begun_) ids.insert(ids.end(), before.begin(), before.end());
    has_begun_ = true;
    ids_ = &ids;
    ASSIGN_OR_RETURN(const size_t taken, TakeSections(0, text, is_last));
    if (is_last) ids.insert(ids.end(), behind.begin(), behind.end());
    return taken;
  }

 private:
  // Takes what is between added tokens of that level.
  absl::StatusOr<size_t> TakeSections(size_t level, absl::string_view text, bool is_whole) {
    const AddedTokens& added = pipeline_.added[level];
    size_t done = 0;
    while (done < text.size()) {
      const absl::string_view rest = text.substr(done);
      const size_t known = is_whole ? rest.size() : added.OpenAt(rest);
      const AddedTokens::Found found = added.Find(rest, follows_word_[level]);
      if (found.begin >= known) {
        ASSIGN_OR_RETURN(const size_t taken, TakeBetween(level, rest.substr(0, known),
                                                         is_whole && known == rest.size()));
        SetTaken(level, rest.substr(0, taken));
        return done + taken;
      }
      RETURN_IF_ERROR(TakeBetween(level, rest.substr(0, found.begin), true).status());
      ids_->push_back(found.id);
      is_at_start_ = true;
      is_in_first_section_ = false;
      SetTaken(level, rest.substr(0, found.begin + found.bytes));
      done += found.begin + found.bytes;
    }
    return done;
  }

  void SetTaken(size_t level, absl::string_view text) {
    if (!text.empty()) follows_word_[level] = EndsInWordCharacter(text);
  }

  absl::StatusOr<size_t> TakeBetween(size_t level, absl::string_view text, bool is_whole) {
    return level == 0 ? TakeNormalized(text, is_whole) : TakeSection(text, is_whole);
  }

  // Normalized text waits in a separate buffer for what follows.
  absl::StatusOr<size_t> TakeNormalized(absl::string_view text, bool is_whole) {
    const Normalizer& normalizer = pipeline_.normalizer;
    if (normalizer.empty()) {
      ASSIGN_OR_RETURN(const size_t taken, TakeSections(1, text, is_whole));
      if (is_whole) follows_word_[1] = false;
      return taken;
    }
    const size_t end = is_whole ? text.size() : normalizer.PlaceToDivide(text);
    if (end > 0) normalized_ += normalizer.Apply(text.substr(0, end), !section_has_begun_);
    section_has_begun_ = !is_whole && (section_has_begun_ || end > 0);
    ASSIGN_OR_RETURN(const size_t taken, TakeSections(1, normalized_, is_whole));
    normalized_.erase(0, taken);
    if (is_whole) follows_word_[1] = false;
    if (normalized_.size() <= kLongestPart) return end;
    return base::DataError(absl::StrCat("there is no place in ", kLongestPart,
                                        " bytes at which the text could be divided"),
                           absl::StatusCode::kResourceExhausted);
  }

  absl::StatusOr<size_t> TakeSection(absl::string_view text, bool is_whole) {
    if (text.empty()) return 0;
    if (!pipeline_.adds_prefix_space || !is_at_start_ || text.front() == ' ') {
      ASSIGN_OR_RETURN(const size_t taken, Split(0, text, is_whole));
      if (taken > 0) is_at_start_ = false;
      return taken;
    }
    const std::string prefixed = " " + std::string(text);
    ASSIGN_OR_RETURN(const size_t taken, Split(0, prefixed, is_whole));
    // If this is the space alone, the text continues without it.
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
    const SplitStep& step = pipeline_.splits[index];
    if (matchers_[index] != nullptr) return SplitByPattern(index, text, is_whole);
    const size_t end = is_whole ? text.size() : LastGap(step, text);
    if (end > 0) RETURN_IF_ERROR(SplitWhole(index, text.substr(0, end)));
    return end;
  }

  absl::StatusOr<size_t> SplitByPattern(size_t index, absl::string_view text, bool is_whole) {
    using Result = SplitPattern::Matcher::Result;
    SplitPattern::Matcher& matcher = *matchers_[index];
    const bool keeps_rest = pipeline_.splits[index].kind == SplitStep::Kind::kPattern;
    size_t done = 0;
    while (done < text.size()) {
      ASSIGN_OR_RETURN(const Result result, matcher.Find(text, done, is_whole));
      if (result == Result::kNeedsMore) return done;
      const bool is_found = result == Result::kFound;
      const size_t begin = is_found ? matcher.begin() : text.size();
      const size_t end = is_found ? matcher.end() : text.size();
      if (keeps_rest) RETURN_IF_ERROR(Next(index, text.substr(done, begin - done)));
      RETURN_IF_ERROR(Next(index, text.substr(begin, end - begin)));
      done = end;
    }
    return done;
  }

  // Returns a place in front of which a step divides, whatever follows; 0: there is none.
  static size_t LastGap(const SplitStep& step, absl::string_view text) {
    size_t last = 0;
    bool follows_other = false;  // behind a character that is no gap
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t character = NextCharacter(text, at);
      bool is_gap = IsWhiteSpace(character);
      if (step.kind == SplitStep::Kind::kSpaces || step.kind == SplitStep::Kind::kWords) {
        is_gap = absl::StartsWith(text.substr(begin), step.space) ||
                 (character == ' ' && step.kind == SplitStep::Kind::kSpaces);
      } else if (step.kind == SplitStep::Kind::kDigits) {
        is_gap = IsNumeric(character);
      }
      if (is_gap && follows_other) last = begin;
      follows_other = !is_gap;
    }
    return last;
  }

  absl::Status SplitWhole(size_t index, absl::string_view text) {
    const SplitStep& step = pipeline_.splits[index];
    switch (step.kind) {
      case SplitStep::Kind::kSpaces:
        return SplitAtSpaces(index, text);
      case SplitStep::Kind::kWords:
        return SplitBefore(index, text, /*in_runs=*/true);
      case SplitStep::Kind::kDigits:
        return SplitAtCharacters(index, text, [&](char32_t c) {
          return !IsNumeric(c) ? kJoins : step.is_single ? kAlone : kJoinsAlike;
        });
      default:
        return SplitAtCharacters(index, text, [](char32_t c) {
          return IsWhiteSpace(c) ? kDropped : IsPunctuation(c) ? kAlone : kJoins;
        });
    }
  }

  absl::Status SplitAtSpaces(size_t index, absl::string_view text) {
    const SplitStep& step = pipeline_.splits[index];
    std::string spaced = absl::StrReplaceAll(text, {{" ", step.space}});
    const bool is_front = index > 0 || is_at_start_;
    const bool is_first = is_front && is_in_first_section_ && (index == 0 || is_at_start_);
    const bool prepends = step.prepends == SplitStep::Prepends::kInSections
                              ? is_front
                              : step.prepends == SplitStep::Prepends::kInText && is_first;
    if (prepends && !absl::StartsWith(spaced, step.space)) spaced.insert(0, step.space);
    if (step.is_single) return SplitBefore(index, spaced, /*in_runs=*/false);
    return Next(index, spaced);
  }

  // Splits in front of each `space`, or of each run of them.
  absl::Status SplitBefore(size_t index, absl::string_view text, bool in_runs) {
    const std::string& space = pipeline_.splits[index].space;
    size_t begin = 0;
    for (size_t at = text.find(space, 1); at != absl::string_view::npos;
         at = text.find(space, at + space.size())) {
      if (in_runs && absl::EndsWith(text.substr(0, at), space)) continue;
      RETURN_IF_ERROR(Next(index, text.substr(begin, at - begin)));
      begin = at;
    }
    return Next(index, text.substr(begin));
  }

  enum Kind : uint8_t { kJoins, kJoinsAlike, kAlone, kDropped };
  template <typename KindOf>
  absl::Status SplitAtCharacters(size_t index, absl::string_view text, KindOf kind_of) {
    size_t begin = 0;
    Kind last = kDropped;
    for (size_t at = 0; at < text.size();) {
      const size_t here = at;
      const Kind kind = kind_of(NextCharacter(text, at));
      if (here > begin && (kind != last || kind == kAlone)) {
        if (last != kDropped) RETURN_IF_ERROR(Next(index, text.substr(begin, here - begin)));
        begin = here;
      }
      last = kind;
    }
    return last == kDropped ? absl::OkStatus() : Next(index, text.substr(begin));
  }

  absl::Status Next(size_t index, absl::string_view piece) {
    return piece.empty() ? absl::OkStatus() : Split(index + 1, piece, true).status();
  }

  void TakePiece(absl::string_view piece) {
    if (const absl::Span<const int32_t>* known = cache_.Find(piece); known != nullptr) {
      ids_->insert(ids_->end(), known->begin(), known->end());
      return;
    }
    piece_ids_.clear();
    pipeline_.model->Encode(piece, scratch_, piece_ids_);
    cache_.Add(piece, piece_ids_);
    ids_->insert(ids_->end(), piece_ids_.begin(), piece_ids_.end());
  }

  const TextPipeline& pipeline_;
  std::vector<std::unique_ptr<SplitPattern::Matcher>> matchers_;  // null: a step without one
  PieceCache cache_;
  PieceModel::Scratch scratch_;
  std::vector<int32_t> piece_ids_;
  std::vector<int32_t>* ids_ = nullptr;
  std::string normalized_;
  bool has_begun_ = false;
  bool section_has_begun_ = false;   // a part of it has been normalized
  bool is_at_start_ = true;          // of the text, or of what follows an added token
  bool is_in_first_section_ = true;  // no added token came before
  std::array<bool, 2> follows_word_ = {};
};

std::unique_ptr<Tokenizer::Encoder> PipelineTokenizer::MakeEncoder() const {
  return std::make_unique<PipelineEncoder>(pipeline_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParsePipeline(absl::string_view text) {
  ASSIGN_OR_RETURN(TextPipeline pipeline, ParseTokenizerJson(text));
  std::vector<std::string> tokens = std::move(pipeline.tokens);
  return std::make_unique<PipelineTokenizer>(std::move(pipeline), std::move(tokens));
}

}  // namespace stagecoach::engine
