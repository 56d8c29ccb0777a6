#include "engine/data/tokenizer/piece_model.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "engine/data/tokenizer/characters.h"

namespace stagecoach::engine {
namespace {

class BpeModel final : public PieceModel {
 public:
  explicit BpeModel(Bpe bpe) : bpe_(std::move(bpe)) {}

  void Encode(absl::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override {
    const auto whole = bpe_.whole_pieces.find(piece);
    if (whole != bpe_.whole_pieces.end()) {
      ids.push_back(whole->second);
      return;
    }
    std::vector<int32_t> symbols;
    if (bpe_.bytes.has_value()) {
      for (const char byte : piece) symbols.push_back((*bpe_.bytes)[static_cast<uint8_t>(byte)]);
    } else {
      AppendCharacters(piece, symbols);
    }
    bpe_.merges.Apply(symbols, scratch.merges);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }

 private:
  void AppendCharacters(absl::string_view piece, std::vector<int32_t>& symbols) const {
    // An unknown character waits for the next known one, but not for bytes.
    bool is_unknown = false;
    for (size_t at = 0; at < piece.size();) {
      const size_t begin = at;
      NextCharacter(piece, at);
      const absl::string_view character = piece.substr(begin, at - begin);
      const auto found = bpe_.characters.find(character);
      if (found != bpe_.characters.end()) {
        if (is_unknown) symbols.push_back(bpe_.unknown);
        is_unknown = false;
        symbols.push_back(found->second);
      } else if (bpe_.fallback.has_value() && bpe_.fallback->Append(character, symbols)) {
        continue;
      } else if (bpe_.unknown >= 0) {
        if (is_unknown && !bpe_.fuses_unknown) symbols.push_back(bpe_.unknown);
        is_unknown = true;
      }
    }
    if (is_unknown) symbols.push_back(bpe_.unknown);
  }

  const Bpe bpe_;
};

class UnigramModel final : public PieceModel {
 public:
  explicit UnigramModel(const Unigram& unigram)
      : fallback_(unigram.fallback), unknown_(unigram.unknown) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < unigram.tokens.size(); ++id) {
      const auto& [token, score] = unigram.tokens[id];
      least = std::min(least, score);
      scores_.push_back(score);
      int32_t node = 0;
      for (const char byte : token) {
        const auto [place, is_new] =
            next_.try_emplace(Edge(node, byte), static_cast<int32_t>(token_at_.size()));
        if (is_new) token_at_.push_back(-1);
        node = place->second;
      }
      if (node != 0) token_at_[static_cast<size_t>(node)] = static_cast<int32_t>(id);
    }
    constexpr double kPenalty = 10.0;
    unknown_score_ = least - kPenalty;
  }

  void Encode(absl::string_view piece, Scratch& /*scratch*/,
              std::vector<int32_t>& ids) const override {
    // The best division of the part that ends at each byte.
    struct Best {
      double score = 0.0;
      int32_t id = -1;
      size_t begin = 0;
    };
    std::vector<Best> best(piece.size() + 1);
    const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
      const double sum = score + best[begin].score;
      if (best[end].id < 0 || sum > best[end].score) best[end] = {sum, id, begin};
    };
    for (size_t begin = 0; begin < piece.size();) {
      size_t next = begin;
      NextCharacter(piece, next);
      bool has_single = false;
      int32_t node = 0;
      for (size_t end = begin; end < piece.size();) {
        const auto found = next_.find(Edge(node, piece[end]));
        if (found == next_.end()) break;
        node = found->second;
        ++end;
        const int32_t id = token_at_[static_cast<size_t>(node)];
        if (id < 0) continue;
        offer(begin, end, id, scores_[static_cast<size_t>(id)]);
        has_single = has_single || end == next;
      }
      if (!has_single) offer(begin, next, unknown_, unknown_score_);
      begin = next;
    }
    std::vector<std::pair<size_t, size_t>> parts;  // last first; consecutive unknown ones as one
    std::vector<int32_t> part_ids;
    for (size_t end = piece.size(); end > 0; end = best[end].begin) {
      const bool goes_on =
          best[end].id == unknown_ && !part_ids.empty() && part_ids.back() == unknown_;
      if (goes_on) {
        parts.back().first = best[end].begin;
        continue;
      }
      parts.emplace_back(best[end].begin, end);
      part_ids.push_back(best[end].id);
    }
    for (size_t i = parts.size(); i-- > 0;) {
      const auto [begin, end] = parts[i];
      AppendPart(piece.substr(begin, end - begin), part_ids[i], ids);
    }
  }

 private:
  static uint64_t Edge(int32_t node, char byte) {
    return uint64_t{static_cast<uint32_t>(node)} << 8 | static_cast<uint8_t>(byte);
  }

  void AppendPart(absl::string_view part, int32_t id, std::vector<int32_t>& ids) const {
    if (id == unknown_) {
      // Several in a row may be a token.
      const int32_t token = Find(part);
      if (token >= 0) {
        ids.push_back(token);
        return;
      }
      if (fallback_.has_value() && fallback_->Append(part, ids)) return;
    }
    ids.push_back(id);
  }

  int32_t Find(absl::string_view token) const {
    int32_t node = 0;
    for (const char byte : token) {
      const auto found = next_.find(Edge(node, byte));
      if (found == next_.end()) return -1;
      node = found->second;
    }
    return token_at_[static_cast<size_t>(node)];
  }

  absl::flat_hash_map<uint64_t, int32_t> next_;  // a trie of the tokens
  std::vector<int32_t> token_at_ = {-1};
  std::vector<double> scores_;
  const std::optional<ByteFallback> fallback_;
  const int32_t unknown_;
  double unknown_score_ = 0.0;
};

class WordPieceModel final : public PieceModel {
 public:
  explicit WordPieceModel(WordPiece word_piece) : model_(std::move(word_piece)) {}

  void Encode(absl::string_view piece, Scratch& /*scratch*/,
              std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    const auto characters =
        std::count_if(piece.begin(), piece.end(), [](char c) { return IsLead(c); });
    std::string token;
    size_t begin = characters > model_.most_characters ? piece.size() + 1 : 0;
    while (begin < piece.size()) {
      size_t end = piece.size();
      for (; end > begin; end = CharacterBefore(piece, end)) {
        token.assign(begin > 0 ? model_.prefix : "");
        token.append(piece.data() + begin, end - begin);
        const auto found = model_.tokens.find(token);
        if (found == model_.tokens.end()) continue;
        ids.push_back(found->second);
        break;
      }
      begin = end == begin ? piece.size() + 1 : end;
    }
    if (begin == piece.size()) return;
    ids.resize(before);
    ids.push_back(model_.unknown);
  }

 private:
  static bool IsLead(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }
  static size_t CharacterBefore(absl::string_view text, size_t end) {
    do --end;
    while (!IsLead(text[end]));
    return end;
  }

  const WordPiece model_;
};

}  // namespace

bool ByteFallback::Append(absl::string_view character, std::vector<int32_t>& to) const {
  const auto id_of = [this](char byte) { return ids[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; })) {
    return false;
  }
  for (const char byte : character) to.push_back(id_of(byte));
  return true;
}

std::unique_ptr<PieceModel> MakePieceModel(Bpe bpe) {
  return std::make_unique<BpeModel>(std::move(bpe));
}
std::unique_ptr<PieceModel> MakePieceModel(const Unigram& unigram) {
  return std::make_unique<UnigramModel>(unigram);
}
std::unique_ptr<PieceModel> MakePieceModel(WordPiece word_piece) {
  return std::make_unique<WordPieceModel>(std::move(word_piece));
}

bool CrossesWords(absl::string_view token, absl::string_view space) {
  for (size_t at = token.find(space, 1); at != absl::string_view::npos;
       at = token.find(space, at + space.size())) {
    if (!absl::EndsWith(token.substr(0, at), space)) return true;
  }
  return false;
}

}  // namespace stagecoach::engine
