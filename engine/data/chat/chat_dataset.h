#ifndef STAGECOACH_ENGINE_DATA_CHAT_CHAT_DATASET_H_
#define STAGECOACH_ENGINE_DATA_CHAT_CHAT_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/chat/chat_example.h"
#include "engine/data/chat/chat_template.h"
#include "engine/data/dataset.h"
#include "engine/data/encoding.h"
#include "engine/data/tokens/tokens.h"

namespace stagecoach::engine {

// The examples that a row of a ChatDataset holds: one, or as many as fit (PackIntoRows).
enum class ExamplesInRow : uint8_t { kOne, kPacked };

// Conversations or other short texts. With ids t of an example and a context of T, its row has the
// input "tokens" t[0], ..., t[T - 1] and as its targets the tokens that follow each of them, t[1],
// ..., t[T], where these are to be learned, and kernels::kNoLabel elsewhere. Behind the end of the
// example the input is padded with the id 0, which a model that looks back alone does not see, and
// there are no labels.
//
// Packed, a row has several examples one after the other, without the last id of each, from which
// nothing is predicted. Each is a document (SampleSpec::has_documents), and so is the padding.
class ChatDataset final : public Dataset {
 public:
  // InvalidArgument: there is no example, one has more than `context` + 1 ids, an id outside the
  // vocabulary or nothing to learn (LearnedTokens), or the vocabulary is not in [2,
  // kMaxVocabulary].
  static absl::StatusOr<std::shared_ptr<const ChatDataset>> Create(
      const std::vector<ChatTokens>& examples, int64_t context, int64_t vocabulary,
      ExamplesInRow in_row = ExamplesInRow::kOne);

  int64_t rows() const override { return static_cast<int64_t>(learned_.size()); }
  int64_t AnswersOf(int64_t row) const override { return learned_[static_cast<size_t>(row)]; }
  // Returns the share of all positions that are not padding.
  double fill() const;

 private:
  explicit ChatDataset(SampleSpec spec) : Dataset(std::move(spec)) {}
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;
  void ReadDocuments(int64_t row, absl::Span<int32_t> out) const override;

  // The ids of an example, and whether each is trained on.
  struct Example {
    absl::Span<const int32_t> ids;
    absl::Span<const uint8_t> is_trained;
  };
  Example ExampleAt(size_t index) const;
  // Returns how many positions an example takes.
  int64_t PositionsOf(const Example& example) const;
  // Calls the function for each example of a row with the position at which it begins, in order,
  // and returns the position at which the padding begins.
  int64_t ForEachExample(int64_t row,
                         absl::FunctionRef<void(const Example&, int64_t)> function) const;

  std::vector<int32_t> ids_;         // of all examples, in the order of rows
  std::vector<uint8_t> is_trained_;  // each of these
  std::vector<size_t> begins_;       // (examples + 1), of their ids
  std::vector<size_t> row_begins_;   // (rows + 1), of their examples
  std::vector<int32_t> learned_;     // (rows): LearnedTokens
};

// Returns the number of tokens of an example that a model learns to predict: those to be trained on
// but for the first one, which nothing precedes.
int64_t LearnedTokens(const ChatTokens& example);

// Returns the template that is named: a built-in one, or a file that ends in ".toml"; "": the one
// of the model whose folder the file of a tokenizer lies in. Errors: those of FindChatTemplate,
// LoadChatTemplate and RecognizeChatTemplate.
absl::StatusOr<ChatTemplate> ChatTemplateFor(const std::string& named,
                                             const std::string& tokenizer);

// Returns whether there are examples in a file of JSON lines: a path that ends in ".jsonl", or the
// first of several (DataFilesOf).
bool HoldsChats(const std::string& spec);

// A context that follows from the examples is a multiple of this.
inline constexpr int64_t kContextGranule = 64;
// And, if examples are packed, at least this, so that several fit.
inline constexpr int64_t kLeastPackedContext = 1024;

// Loads a training and a test set, whose examples are the last ones of the file, or of all files
// that the path names (DataFilesOf): test_fraction of them, rounded down, but at least one.
// Examples of more than the context + 1 tokens, and those without a token to learn, are left out,
// and `on_notice` is told how many; it may be empty. With TokenOptions::context_is_limit, the
// context is what the longest example needs, rounded up to a multiple of kContextGranule, and of
// packed ones at least kLeastPackedContext. Errors: those of ReadChatFile, TokenizeChat,
// Tokenizer::Load, FindChatTemplate and LoadChatTemplate; InvalidArgument: no tokenizer is named,
// or no example is left for one of the sets.
absl::StatusOr<TrainTest> LoadChats(const std::string& path, const TokenOptions& options,
                                    const std::function<void(const std::string&)>& on_notice);

// Loads all examples of a file for a model that was trained on data with this encoding, of that
// vocabulary. FailedPrecondition: it was not trained on tokens of this tokenizer. Other errors:
// those of LoadChats.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadChatSamples(
    const std::string& path, const TokenOptions& options, const DataEncoding& encoding,
    const std::function<void(const std::string&)>& on_notice);

// What became of an example of a file.
struct ChatLine {
  int64_t line = 0;      // in the file, from 1
  std::string left_out;  // why it is no row of the data; "": it is the next one
};
struct ChatSamples {
  std::shared_ptr<const Dataset> data;
  std::vector<ChatLine> lines;  // one for each example, in the order of the file
};

// Does the same, and says what became of every example.
absl::StatusOr<ChatSamples> LoadChatLines(const std::string& path, const TokenOptions& options,
                                          const DataEncoding& encoding,
                                          const std::function<void(const std::string&)>& on_notice);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CHAT_CHAT_DATASET_H_
