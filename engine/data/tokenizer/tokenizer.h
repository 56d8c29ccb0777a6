#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_TOKENIZER_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Turns text into ids of tokens, as described by a file made elsewhere, and ids into text.
// Immutable and thread-safe.
//
// A name that ends in ".json": Hugging Face's tokenizer.json, as GPT-2, Llama 2 and 3, Mistral,
// Qwen 2.5, SmolLM and BERT have one. Encode returns the ids that the library `tokenizers` does,
// with all of this:
//   model           BPE of bytes, if the pre-tokenizer ends in ByteLevel, or of characters, with
//                   byte_fallback, unk_token and fuse_unk; ignore_merges; no dropout, prefix or
//                   suffix. Unigram, with byte_fallback. WordPiece
//   normalizer      NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Prepend, Replace of a String,
//                   BertNormalizer, or a Sequence
//   pre_tokenizer   ByteLevel, add_prefix_space if it is the first; Split by a Regex or String
//                   (Isolated; or Removed and inverted), patterns as in split_pattern.h; Digits;
//                   Metaspace; BertPreTokenizer; or a Sequence
//   added_tokens    special or not, normalized or not, single_word, lstrip, rstrip; the leftmost
//                   first and of those the longest. Ids that the library does not assign are
//                   refused
//   post_processor  none, ByteLevel, BertProcessing, RobertaProcessing or TemplateProcessing, or a
//                   Sequence: Encode puts tokens before and behind a text
//   decoder         none, ByteLevel, Metaspace, WordPiece, or a Sequence of
//                   Replace by a space, ByteFallback, Fuse, and Strip of the first space
// Anything else that the file asks for is refused by its name; "truncation" and "padding", which
// are about examples and not about text, are not read.
//
// A name that ends in ".model": a model of SentencePiece, read by its library. A long text is
// encoded part by part, divided at spaces between words if that makes no difference.
class Tokenizer {
 public:
  // NotFound: there is no such file. InvalidArgument: it is malformed, or asks for something that
  // is not supported, or its name has neither of these ends. Every error names the file. Safe on
  // hostile input.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& path);
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The vocabulary size, one more than the largest id.
  int64_t vocabulary() const { return static_cast<int64_t>(tokens_.size()); }
  // Hash of the file's contents (base/hash.h): two tokenizers with the same hash do the same.
  const std::string& hash() const { return hash_; }
  // The token that ends a text: SentencePiece's own, or an added one that is called
  // "<|endoftext|>", "<|end_of_text|>" or "</s>". It occurs in no encoded text, unless it is
  // written there.
  std::optional<int32_t> end_of_text() const { return end_of_text_; }
  // Returns the bytes that the token stands for, not always whole characters. "": nothing, or there
  // is no such id.
  absl::string_view BytesOf(int32_t id) const;
  // Returns whether the space in front of the first token of a text stands for nothing.
  bool drops_first_space() const { return drops_first_space_; }

  // Passes the ids of a text to `take`, some at a time, with the number of its bytes at which they
  // end; an error from `take` ends the call. The memory needed does not grow with the text, only
  // with what must not be divided. DataLoss: a byte is not UTF-8; the message has its offset.
  // ResourceExhausted: there is no place to divide the text in kLongestPart bytes, or a pattern of
  // the file takes too long.
  using Take = absl::FunctionRef<absl::Status(absl::Span<const int32_t> ids, size_t encoded_bytes)>;
  absl::Status Encode(absl::string_view text, Take take) const;
  static constexpr size_t kLongestPart = size_t{16} << 20;

  // Does the same, all at once.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

  // Returns the text of ids (TextDecoder).
  std::string Decode(absl::Span<const int32_t> ids) const;

 protected:
  // Encodes one text.
  class Encoder {
   public:
    virtual ~Encoder() = default;
    // Appends the ids of a part of the text that does not depend on what follows, and returns the
    // bytes of the part: all, if it `is_last`, and 0 if more must be known. `text` continues where
    // the last part ended, and is UTF-8.
    virtual absl::StatusOr<size_t> Encode(absl::string_view text, bool is_last,
                                          std::vector<int32_t>& ids) = 0;
  };

  // `tokens`: what each id stands for.
  Tokenizer(std::vector<std::string> tokens, std::optional<int32_t> end_of_text,
            bool drops_first_space)
      : tokens_(std::move(tokens)),
        end_of_text_(end_of_text),
        drops_first_space_(drops_first_space) {}

 private:
  virtual std::unique_ptr<Encoder> MakeEncoder() const = 0;

  const std::vector<std::string> tokens_;
  const std::optional<int32_t> end_of_text_;
  const bool drops_first_space_;
  std::string hash_;
};

// Returns the text of ids that come one by one. Bytes that are not UTF-8 become U+FFFD, one for
// each maximal beginning of a character. Thread-compatible.
class TextDecoder {
 public:
  // `tokenizer` outlives this.
  explicit TextDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Returns the characters that this token completes; a part of one is kept for the next.
  std::string Append(int32_t id);
  // Returns what was kept.
  std::string Finish();

 private:
  std::string TakeCharacters(bool is_last);

  const Tokenizer& tokenizer_;
  std::string kept_;
  bool is_first_ = true;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_TOKENIZER_H_
