#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stagecoach::engine {

// Wraps SentencePiece's library. Its header uses the name absl::string_view for std::string_view,
// while Debian's Abseil has a class of its own by that name; so neither this header nor its source
// may include Abseil's headers. Thread-safe.
class SentencePieceModel {
 public:
  SentencePieceModel();
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  // Returns whether the library could load the model; its own message would name its own sources.
  // After a failure, only destruction is allowed.
  bool Load(std::string_view contents);
  bool Encode(std::string_view text, std::vector<int32_t>& ids) const;

  int32_t size() const;
  // Returns the name of a token, with U+2581 for a space; or what it stands for, if that is
  // something else.
  std::string Piece(int32_t id) const;
  bool IsControl(int32_t id) const;  // stands for nothing
  bool IsUnknown(int32_t id) const;
  bool IsByte(int32_t id) const;  // called like "<0x41>"
  int32_t end_of_text() const;    // -1: none

 private:
  struct Processor;
  const std::unique_ptr<Processor> processor_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_MODEL_H_
