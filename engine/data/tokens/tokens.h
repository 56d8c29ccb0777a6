#ifndef STAGECOACH_ENGINE_DATA_TOKENS_TOKENS_H_
#define STAGECOACH_ENGINE_DATA_TOKENS_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/encoding.h"
#include "engine/data/tokenizer/token_ids.h"

namespace stagecoach::engine {

// Sequences of tokens, each of which is to be predicted from those before it. With ids t and a
// context of T, row r has the input "tokens" t[rT], ..., t[rT + T - 1], ids of the vocabulary, and
// as its targets the tokens that follow each of them, t[rT + 1], ..., t[rT + T]: T labels, of as
// many classes. So rows share no target, and what is left after the last whole row is not read.
//
// An epoch of training cuts the same tokens at other places: row r begins at o + rT, where o is
// drawn from [0, T) by seed and epoch, but no later than the last row can begin, which may thus
// share targets with the one before. The first o tokens are not seen in that epoch.
class TokenDataset final : public Dataset {
 public:
  // Makes the sequences. InvalidArgument unless there are more than `context` ids, all below
  // `vocabulary`, which is above 1 and at most kMaxVocabulary.
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
// Used in place of a tokenizer's file: each byte of text is a token, whatever the vocabulary.
inline constexpr char kBytesTokenizer[] = "bytes";

struct TokenOptions {
  Sets sets = Sets::kBoth;
  // The share of a file's tokens, or of its text, in (0, 1), that is the test set: its end.
  double test_fraction = kDefaultTestFraction;
  int64_t context = kDefaultContext;
  // 0: that of the tokenizer, or of TokenInfo; otherwise 256 for a text, and one more than the
  // largest loaded id for ids.
  int64_t vocabulary = 0;
  // A file (Tokenizer::Load) by which text becomes ids, or by which ids were made, or
  // kBytesTokenizer, for text; "": each byte of text is a token, if the vocabulary is that of bytes
  // or unset, and ids were made as their TokenInfo says.
  std::string tokenizer;
  // For conversations (engine/data/chat/chat_dataset.h): the name or the file of their template;
  // "": the tokenizer's own.
  std::string chat_template;
  bool trains_on_all = false;   // and not on what the assistant says alone
  bool packs_examples = false;  // several into a row of `context` tokens (ChatDataset)
  // Of conversations, `context` is a limit: theirs is as long as the longest of them needs.
  bool context_is_limit = false;
};

// Returns whether there are tokens: a path that ends in ".txt", ".bin" or ".npy" (each of
// TokenFormat), or a directory that holds train.bin and val.bin, or train.npy and val.npy. With a
// tokenizer, any other file is text. Of several files (DataFilesOf), the first one decides.
bool HoldsTokens(const std::string& spec, bool has_tokenizer = false);
// Returns whether the path is text, given a tokenizer.
bool HoldsText(const std::string& spec);

// Loads a training and a test set: the two files of a directory; or the two parts of a file, or of
// several as if they were one (a file of ids is mapped, however many there are), the
// training set being all but test_fraction, rounded down to whole tokens, or, for a text with a
// tokenizer, up to the end of a line (TrainingBytes in engine/data/tokens/prepare.h); its ids are
// kept in memory. Errors: those of TokenIds::Map, TokenDataset::Create, Tokenizer::Load and
// Tokenizer::Encode; FailedPrecondition: ids of another tokenizer; InvalidArgument: files that do
// not match their TokenInfo, text without a tokenizer for another vocabulary than that of bytes, or
// ids that are said to be bytes. Pre-condition: HoldsTokens, with a tokenizer if one is named.
absl::StatusOr<TrainTest> LoadTokens(const std::string& path, const TokenOptions& options);

// Loads sequences for a model that was trained on data with this encoding, of that vocabulary: all
// of a file, or the test set of a directory. The vocabulary is not read from `options`.
// FailedPrecondition: the encoding is not that of tokens, or is that of bytes while these are none,
// or vice versa, or is that of another tokenizer. Other errors and the pre-condition: those of
// LoadTokens.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadTokenSamples(const std::string& path,
                                                                const TokenOptions& options,
                                                                const DataEncoding& encoding);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENS_TOKENS_H_
