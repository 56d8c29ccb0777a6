#ifndef STAGECOACH_ENGINE_DATA_TOKENS_TOKEN_FILE_H_
#define STAGECOACH_ENGINE_DATA_TOKENS_TOKEN_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/tokenizer/token_ids.h"

namespace stagecoach::engine {

// Returns the bytes per token in a file for that vocabulary: 2, or 4 if its ids do not fit in 16
// bits.
size_t TokenBytes(int64_t vocabulary);

// Returns whether a path names a file of ids, by its suffix: ".bin" or ".npy".
bool IsTokenFileName(absl::string_view path);

using AppendTokens = std::function<absl::Status(absl::Span<const int32_t> ids)>;

// Replaces the file at `path` with one of the ids that `write` appends, and returns their number.
// Formats: kBin, as in llm.c (LlmcForm), with at most 2^31 - 1 ids, or kNpy, "<u2" or "<i4". All or
// nothing, as base::WriteFileAtomically. FailedPrecondition: too many for the format.
// Pre-condition: ids are below `vocabulary`, and the format is not kText.
absl::StatusOr<int64_t> WriteTokenFile(
    const std::string& path, TokenFormat format, int64_t vocabulary,
    absl::FunctionRef<absl::Status(const AppendTokens& append)> write);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENS_TOKEN_FILE_H_
