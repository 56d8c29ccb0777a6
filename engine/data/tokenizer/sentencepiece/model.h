#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stagecoach::engine {

// SentencePiece's library. Its header calls std::string_view absl::string_view, which Debian's
// Abseil has as a class of its own; so neither this nor its source may include Abseil's headers.
// Thread-safe.
class SentencePieceModel {
 public:
  SentencePieceModel();
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  // Whether they could; what the library says otherwise names its own sources. After that, only
  // destruction.
  bool Load(std::string_view contents);
  bool Encode(std::string_view text, std::vector<int32_t>& ids) const;

  int32_t size() const;
  // The name of a token, with U+2581 for a space; what it stands for where that is something else.
  std::string Piece(int32_t id) const;
  bool IsControl(int32_t id) const;  // it stands for nothing
  bool IsUnknown(int32_t id) const;
  bool IsByte(int32_t id) const;  // its name is "<0x41>"
  int32_t end_of_text() const;    // -1: there is none

 private:
  struct Processor;
  const std::unique_ptr<Processor> processor_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_MODEL_H_
