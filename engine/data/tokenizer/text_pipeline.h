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

// How the pieces that the step before has left are divided.
struct SplitStep {
  enum class Kind : uint8_t {
    kPattern,     // what a pattern matches, and what is between
    kMatches,     // what it matches alone
    kDigits,      // numbers, and what is between; each by itself if `is_single`
    kWhiteSpace,  // at white space, which is dropped, and around each punctuation mark (BERT's)
    kSpaces,      // `space` stands for spaces and is put in front; in front of each if `is_single`
    kWords,       // in front of `space` behind something else: a model of which no token goes on
                  // there makes the same of the parts as of all
  };
  enum class Prepends : uint8_t { kNever, kInText, kInSections };

  Kind kind = Kind::kPattern;
  std::optional<SplitPattern> pattern = std::nullopt;
  std::string space = {};
  bool is_single = true;
  // In front of a text; or also of what follows an added token.
  Prepends prepends = Prepends::kNever;
};

// What a tokenizer.json says.
struct TextPipeline {
  std::vector<std::string> tokens;  // what each id stands for
  // First the one kind is found in a text; what is left is normalized; then the other is.
  std::array<AddedTokens, 2> added;
  Normalizer normalizer;
  // Then each divides the pieces that the one before has left.
  std::vector<SplitStep> splits;
  bool adds_prefix_space = false;
  std::unique_ptr<PieceModel> model;
  std::vector<int32_t> before_text, behind_text;
  std::optional<int32_t> end_of_text;
  bool drops_first_space = false;
};

// Reads a tokenizer.json. InvalidArgument says where and what is wrong or not supported.
absl::StatusOr<TextPipeline> ParseTokenizerJson(absl::string_view text);

// The tokenizer that it is.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParsePipeline(absl::string_view text);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_TEXT_PIPELINE_H_
