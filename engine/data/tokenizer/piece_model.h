#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_PIECE_MODEL_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_PIECE_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokenizer/bpe_merges.h"

namespace stagecoach::engine {

// Turns a piece of text into ids, as the library `tokenizers` does. Immutable and thread-safe.
class PieceModel {
 public:
  virtual ~PieceModel() = default;

  struct Scratch {
    BpeMerges::Scratch merges;
  };
  // Appends the ids of a piece, which is not empty.
  virtual void Encode(absl::string_view piece, Scratch& scratch,
                      std::vector<int32_t>& ids) const = 0;
};

// The ids of tokens that are bytes, such as "<0x0A>": used for a character without a token, if all
// of its bytes have one.
struct ByteFallback {
  ByteFallback() { ids.fill(-1); }
  // Appends them. Returns false if some byte has none.
  bool Append(absl::string_view character, std::vector<int32_t>& to) const;

  std::array<int32_t, 256> ids;
};

struct Bpe {
  // The initial symbols of a piece: each byte, or, if unset, each character that has a token.
  std::optional<std::array<int32_t, 256>> bytes;
  absl::flat_hash_map<std::string, int32_t> characters;
  std::optional<ByteFallback> fallback;  // for other characters
  int32_t unknown = -1;                  // for characters that remain; -1: they are dropped
  bool fuses_unknown = false;            // one for several in a row
  BpeMerges merges;
  // Pieces that become one token, whatever the merges yield.
  absl::flat_hash_map<std::string, int32_t> whole_pieces;
};
std::unique_ptr<PieceModel> MakePieceModel(Bpe bpe);

// Kudo 2018, "Subword regularization": the pieces whose scores have the largest sum.
struct Unigram {
  std::vector<std::pair<std::string, double>> tokens;  // by id, with scores
  std::optional<ByteFallback> fallback;
  int32_t unknown = 0;
};
std::unique_ptr<PieceModel> MakePieceModel(const Unigram& unigram);

// BERT's: the longest token at the front, then the longest behind it, and so on.
struct WordPiece {
  absl::flat_hash_map<std::string, int32_t> tokens;
  std::string prefix = "##";  // of tokens that are not at the front
  int32_t unknown = 0;        // for a piece that is not all tokens, or is longer
  int64_t most_characters = 100;
};
std::unique_ptr<PieceModel> MakePieceModel(WordPiece word_piece);

// Returns whether a token continues beyond a word, where `space` stands for a space.
bool CrossesWords(absl::string_view token, absl::string_view space);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_PIECE_MODEL_H_
