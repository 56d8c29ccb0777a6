#ifndef STAGECOACH_ENGINE_DATA_TOKENS_PREPARE_H_
#define STAGECOACH_ENGINE_DATA_TOKENS_PREPARE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokens/tokens.h"

namespace stagecoach::engine {

// Returns the number of bytes of a text to train on, so that about `test_fraction` of it is left:
// up to the first line end from there on, or, if there is none nearby, up to the end of a
// character. Pre-conditions: the text is UTF-8; the fraction is in [0, 1].
size_t TrainingBytes(absl::string_view text, double test_fraction);

struct PrepareOptions {
  std::string text;       // a UTF-8 file of any size
  std::string tokenizer;  // Tokenizer::Load
  // Destination of the ids (engine/data/tokens/token_file.h): a name that ends in ".bin" or ".npy",
  // for a file; or a directory, which is created if need be, for train.bin, val.bin and a copy of
  // the tokenizer. A description of the ids is written next to them
  // (engine/data/tokens/token_info.h).
  std::string output;
  double test_fraction = kDefaultTestFraction;  // of the text, for val.bin; unused for a single
                                                // file
  // Reports progress; an error that it returns ends the call.
  std::function<absl::Status(int64_t done_bytes, int64_t bytes)> on_progress;
};

struct PreparedTokens {
  struct File {
    std::string path;
    int64_t tokens = 0;
  };
  std::vector<File> files;
  int64_t text_bytes = 0;
  int64_t vocabulary = 0;
  size_t token_bytes = 0;  // in the files
};

// Turns a text into ids. Each file is written all or nothing, and their description last. Memory
// does not grow with the text. NotFound, DataLoss, InvalidArgument: the text or the tokenizer is
// missing or unusable; the message names it. Any other error is about the output, or comes from
// on_progress.
absl::StatusOr<PreparedTokens> PrepareTokens(const PrepareOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENS_PREPARE_H_
