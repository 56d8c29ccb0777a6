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
class TokenDataset final : public Dataset {
 public:
  // InvalidArgument unless there are more than `context` ids, all below `vocabulary`, which is
  // above 1 and at most kMaxVocabulary.
  static absl::StatusOr<std::shared_ptr<const TokenDataset>> Create(TokenIds ids, int64_t context,
                                                                    int64_t vocabulary);

  int64_t rows() const override { return (ids_.size() - 1) / context(); }
  int64_t context() const { return features(); }  // T
  int64_t vocabulary() const { return classes(); }
  const TokenIds& ids() const { return ids_; }

 private:
  TokenDataset(SampleSpec spec, TokenIds ids) : Dataset(std::move(spec)), ids_(std::move(ids)) {}
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;

  const TokenIds ids_;
};

inline constexpr int64_t kDefaultContext = 256;

struct TokenOptions {
  int64_t context = kDefaultContext;
  // 0: of a text 256, otherwise one more than the largest id of both sets.
  int64_t vocabulary = 0;
};

// Whether tokens are to be found there: a path that ends in ".txt", ".bin" or ".npy" (each of
// TokenFormat), or a directory that holds train.bin and val.bin, or train.npy and val.npy.
bool HoldsTokens(const std::string& path);

// Of a directory, the training and the test set are its two files; a file is cut in two, the
// training set being its first nine tenths, rounded down to whole tokens. Errors: those of
// TokenIds::Map and TokenDataset::Create. Pre-condition: HoldsTokens(path).
absl::StatusOr<TrainTest> LoadTokens(const std::string& path, const TokenOptions& options);

// Sequences for a model that was trained on data encoded so, of that vocabulary: all of a file, or
// the test set of a directory. Of `options`, the vocabulary is not read. FailedPrecondition: the
// encoding is not of tokens, or of bytes where these are none, or the other way round. Other errors
// and the pre-condition: those of LoadTokens.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadTokenSamples(const std::string& path,
                                                                const TokenOptions& options,
                                                                const DataEncoding& encoding);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENS_H_
