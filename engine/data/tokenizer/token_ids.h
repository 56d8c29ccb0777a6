#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_TOKEN_IDS_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_TOKEN_IDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Describes how a file holds tokens.
enum class TokenFormat : uint8_t {
  // UTF-8 text (RFC 3629), each byte of which is a token: a vocabulary of 256.
  kText,
  // Little-endian uint16, and nothing else, as nanoGPT's prepare.py writes them; or the same behind
  // llm.c's header, 256 little-endian int32, the first three of which are those of LlmcForm and the
  // number of tokens. A file that starts with the first of these numbers has the header; a file
  // without it that looks as if its ids were wider is refused.
  kBin,
  // A one-dimensional array "<u2", "<u4", "<i4" or "<i8" (engine/data/npy.h).
  kNpy,
};

// The two files of llm.c's dev/data/data_common.py: for GPT-2's vocabulary, and for Llama-3's.
struct LlmcForm {
  int32_t magic;
  int32_t version;
  size_t token_bytes;  // unsigned
};
inline constexpr LlmcForm kLlmcForms[] = {{20240520, 1, 2}, {20240801, 7, 4}};
inline constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);

inline constexpr int64_t kBytesVocabulary = 256;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

// Consecutive ids of tokens, each in [0, kMaxVocabulary): in files that are mapped into memory as
// they are, or in memory. Immutable and thread-safe; copies share what they view.
class TokenIds {
 public:
  // Maps a file and checks all of it: every id is below `vocabulary`, unless that is 0. Errors name
  // the file, what was found and what was expected: NotFound for a missing file, DataLoss for one
  // that is truncated, has extra bytes or, with kText, is not UTF-8, InvalidArgument for any other
  // malformed content. The file must not change (base/system/mapped_file.h).
  static absl::StatusOr<TokenIds> Map(const std::string& path, TokenFormat format,
                                      int64_t vocabulary = 0);
  // Makes ids in memory. InvalidArgument: an id is out of range.
  static absl::StatusOr<TokenIds> Of(std::vector<int32_t> ids, int64_t vocabulary = 0);

  // Returns all ids in their order, which remain where they are. Pre-condition: there is a part.
  static TokenIds Join(std::vector<TokenIds> parts);

  int64_t size() const { return ends_.back(); }
  int64_t largest() const { return largest_; }  // -1: there are none
  // Writes ids `first`, first + 1, ... to all of `out`. Pre-condition: they exist.
  void Copy(int64_t first, absl::Span<int32_t> out) const;
  // Returns `count` of them from `first` on; largest() stays that of the whole. Pre-condition: as
  // in Copy.
  TokenIds Part(int64_t first, int64_t count) const;

 private:
  enum class Element : uint8_t { kUint8, kUint16, kUint32, kInt32, kInt64 };  // little-endian

  // Ids that follow each other in memory.
  struct Piece {
    std::shared_ptr<const void> memory;  // keeps ids alive
    const void* ids;                     // unaligned
    Element element;

    // Returns function(value) for a value of the elements' type.
    template <typename F>
    auto WithElement(F function) const;
    // Returns the piece without its first ids.
    Piece From(int64_t first) const;
  };

  TokenIds(std::shared_ptr<const void> memory, const void* ids, Element element, int64_t size)
      : pieces_{{std::move(memory), ids, element}}, ends_{size} {}
  TokenIds() = default;
  static absl::StatusOr<TokenIds> OfContents(const std::string& path, TokenFormat format,
                                             std::shared_ptr<const void> memory,
                                             absl::string_view contents);
  // Checks and measures the only piece.
  absl::Status CheckAll(const std::string& name, int64_t vocabulary);

  std::vector<Piece> pieces_;  // at least one
  std::vector<int64_t> ends_;  // of the pieces among all ids
  int64_t largest_ = -1;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_TOKEN_IDS_H_
