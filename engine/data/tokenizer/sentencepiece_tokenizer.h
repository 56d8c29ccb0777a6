#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace stagecoach::engine {

// Returns the tokenizer that a model of SentencePiece is. InvalidArgument: it is none.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSentencePiece(absl::string_view model);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
