#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_TEXT_PIPELINE_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_TEXT_PIPELINE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/piece_model.h"
#include "engine/data/tokenizer/split_pattern.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace stagecoach::engine {

// Describes how the pieces that the previous step has left are divided.
struct SplitStep {
  enum class Kind : uint8_t {
    kPattern,     // the matches of a pattern, and what is between
    kMatches,     // the matches alone
    kDigits,      // numbers, and what is between; each digit by itself if `is_single`
    kWhiteSpace,  // at white space, which is dropped, and around each punctuation mark (BERT's)
    kSpaces,      // `space` stands for spaces and is put in front; in front of each if `is_single`
    kWords,       // in front of `space` behind something else: for a model none of whose tokens
                  // continues there, the parts yield the same as the whole
  };
  enum class Prepends : uint8_t { kNever, kInText, kInSections };

  Kind kind = Kind::kPattern;
  std::optional<SplitPattern> pattern = std::nullopt;
  std::string space = {};
  bool is_single = true;
  // Puts `space` in front of a text; or also in front of what follows an added token.
  Prepends prepends = Prepends::kNever;
};

// The contents of a tokenizer.json.
struct TextPipeline {
  std::vector<std::string> tokens;  // what each id stands for
  // Tokens of the first kind are found in the text; what is left is normalized; then those of the
  // second kind are found.
  std::array<AddedTokens, 2> added;
  Normalizer normalizer;
  // Then each step divides the pieces that the previous one has left.
  std::vector<SplitStep> splits;
  bool adds_prefix_space = false;
  std::unique_ptr<PieceModel> model;
  std::vector<int32_t> before_text, behind_text;
  std::optional<int32_t> end_of_text;
  bool drops_first_space = false;
};

// Reads a tokenizer.json. InvalidArgument says where and what is wrong or not supported.
absl::StatusOr<TextPipeline> ParseTokenizerJson(absl::string_view text);

// Returns the tokenizer that it describes.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParsePipeline(absl::string_view text);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_TEXT_PIPELINE_H_
