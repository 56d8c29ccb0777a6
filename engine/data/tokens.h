#ifndef STAGECOACH_ENGINE_DATA_TOKENS_H_
#define STAGECOACH_ENGINE_DATA_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/encoding.h"
#include "engine/data/token_ids.h"

namespace stagecoach::engine {

// Sequences of tokens, each to be told from those before it. With ids t and a context of T, row r
// has the input "tokens" t[rT], ..., t[rT + T - 1], ids of the vocabulary, and as its targets what
// follows each of them, t[rT + 1], ..., t[rT + T]: T labels, of as many classes. So rows share no
// target, and what is left after the last whole row is not read.
//
// An epoch of training cuts the same tokens elsewhere: row r begins at o + rT, where o is drawn
// from [0, T) by seed and epoch, but no later than the last row can, which may so share targets
// with the one before. The first o tokens are not seen in that epoch.
class TokenDataset final : public Dataset {
 public:
  // InvalidArgument unless there are more than `context` ids, all below `vocabulary`, which is
  // above 1 and at most kMaxVocabulary.
  static absl::StatusOr<std::shared_ptr<const TokenDataset>> Create(TokenIds ids, int64_t context,
                                                                    int64_t vocabulary);

  int64_t rows() const override { return (ids_.size() - 1) / context(); }
  std::shared_ptr<const Dataset> ForEpoch(uint64_t seed, int64_t epoch) const override;
  int64_t context() const { return features(); }  // T
  int64_t vocabulary() const { return classes(); }
  const TokenIds& ids() const { return ids_; }

 private:
  TokenDataset(SampleSpec spec, TokenIds ids, int64_t origin)
      : Dataset(std::move(spec)), ids_(std::move(ids)), origin_(origin) {}
  int64_t BeginOf(int64_t row) const;
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;

  const TokenIds ids_;
  const int64_t origin_;  // o
};

inline constexpr int64_t kDefaultContext = 256;
inline constexpr double kDefaultTestFraction = 0.1;
// In the place of a tokenizer's file: each byte of text is a token, whatever the vocabulary.
inline constexpr char kBytesTokenizer[] = "bytes";

struct TokenOptions {
  Sets sets = Sets::kBoth;
  // Of a file, in (0, 1): the share of its tokens, or of its text, that is the test set: its end.
  double test_fraction = kDefaultTestFraction;
  int64_t context = kDefaultContext;
  // 0: that of the tokenizer, or of TokenInfo; else of a text 256, and one more than the largest id
  // of what is loaded for ids.
  int64_t vocabulary = 0;
  // A file (Tokenizer::Load) by which text becomes ids, or by which ids were made, or
  // kBytesTokenizer, for text; "": each byte of text is a token, if the vocabulary is that of bytes
  // or not said, and ids are by what their TokenInfo says.
  std::string tokenizer;
};

// Whether tokens are to be found there: a path that ends in ".txt", ".bin" or ".npy" (each of
// TokenFormat), or a directory that holds train.bin and val.bin, or train.npy and val.npy. With a
// tokenizer, any other file is text.
bool HoldsTokens(const std::string& path, bool has_tokenizer = false);
// Whether text is there, if there is a tokenizer.
bool HoldsText(const std::string& path);

// Of a directory, the training and the test set are its two files; a file is cut in two, the
// training set being all but test_fraction, rounded down to whole tokens, or, of a text for a
// tokenizer, up to the end of a line (TrainingBytes in engine/data/prepare.h); its ids are kept in
// memory. Errors: those of TokenIds::Map, TokenDataset::Create, Tokenizer::Load and
// Tokenizer::Encode; FailedPrecondition: ids of another tokenizer; InvalidArgument: files that are
// not what their TokenInfo says, text without a tokenizer for another vocabulary than that of
// bytes, or ids that are said to be bytes. Pre-condition: HoldsTokens, with a tokenizer if one is
// named.
absl::StatusOr<TrainTest> LoadTokens(const std::string& path, const TokenOptions& options);

// Sequences for a model that was trained on data encoded so, of that vocabulary: all of a file, or
// the test set of a directory. Of `options`, the vocabulary is not read. FailedPrecondition: the
// encoding is not of tokens, or of bytes where these are none, or the other way round, or of
// another tokenizer. Other errors and the pre-condition: those of LoadTokens.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadTokenSamples(const std::string& path,
                                                                const TokenOptions& options,
                                                                const DataEncoding& encoding);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENS_H_
