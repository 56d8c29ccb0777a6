#ifndef STAGECOACH_ENGINE_DATA_PREPARE_H_
#define STAGECOACH_ENGINE_DATA_PREPARE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokens.h"

namespace stagecoach::engine {

// How many bytes of a text are to train on, so that about `test_fraction` of it are left: up to the
// first end of a line from there on, or, where there is none nearby, of a character.
// Pre-conditions: it is UTF-8; the fraction is in [0, 1].
size_t TrainingBytes(absl::string_view text, double test_fraction);

struct PrepareOptions {
  std::string text;       // a file of UTF-8, of any size
  std::string tokenizer;  // Tokenizer::Load
  // Where the ids go (engine/data/token_file.h): a name that ends in ".bin" or ".npy", for a file;
  // or a directory, which is made if need be, for train.bin, val.bin and a copy of the tokenizer.
  // What is known of the ids goes beside them (engine/data/token_info.h).
  std::string output;
  double test_fraction = kDefaultTestFraction;  // of the text, for val.bin; not of a file
  // Told of progress; an error of it ends all.
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

// Makes ids of a text. Each file is written all or nothing, and what describes them last. Needs no
// more memory for a longer text. NotFound, DataLoss, InvalidArgument: the text or the tokenizer is
// not there, or no good; the message names it. Any other error is of the output, or on_progress'.
absl::StatusOr<PreparedTokens> PrepareTokens(const PrepareOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_PREPARE_H_
