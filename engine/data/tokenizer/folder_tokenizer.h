#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_FOLDER_TOKENIZER_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_FOLDER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace stagecoach::engine {

// The tokenizer of a model in a Hugging Face folder.
struct FolderTokenizer {
  std::string path;  // of its file
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string
      notice;  // why tokenizer.model is used although there is a tokenizer.json; "" otherwise
};

// Loads tokenizer.json or, if that is missing or refused, tokenizer.model. NotFound: the folder has
// neither. Errors of Tokenizer::Load.
absl::StatusOr<FolderTokenizer> LoadFolderTokenizer(const std::string& folder);

// Returns whether the library transformers puts the model's first token in front of a text, if the
// tokenizer is a model of SentencePiece: it does unless tokenizer_config.json says otherwise. (A
// tokenizer.json says so itself, and then Encode does.)
bool AddsBeginOfText(const std::string& tokenizer);

// Writes the tokenizer of a file, and what transformers needs to know about it, into a folder of a
// model of that context: its file, as tokenizer.json or tokenizer.model, and tokenizer_config.json,
// which is a copy of the one next to the file, if there is one. Errors of the system.
absl::Status WriteFolderTokenizer(const std::string& path, const Tokenizer& tokenizer,
                                  int64_t context, std::optional<int64_t> begin_of_text,
                                  std::optional<int64_t> end_of_text, const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_FOLDER_TOKENIZER_H_
