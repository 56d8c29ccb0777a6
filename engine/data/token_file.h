#ifndef STAGECOACH_ENGINE_DATA_TOKEN_FILE_H_
#define STAGECOACH_ENGINE_DATA_TOKEN_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/token_ids.h"

namespace stagecoach::engine {

// Of a token of such a vocabulary in a file: 2, or 4 where its ids do not fit in 16 bits.
size_t TokenBytes(int64_t vocabulary);

// Whether a path names a file of ids, by how it ends: ".bin" or ".npy".
bool IsTokenFileName(absl::string_view path);

using AppendTokens = std::function<absl::Status(absl::Span<const int32_t> ids)>;

// Replaces the file at `path` by one of the ids that `write` appends, and returns their number:
// kBin, as llm.c's (LlmcForm), of which there may be 2^31 - 1, or kNpy, "<u2" or "<i4". All or
// nothing, as base::WriteFileAtomically. FailedPrecondition: too many for the format.
// Pre-condition: ids are below `vocabulary`, and the format is not kText.
absl::StatusOr<int64_t> WriteTokenFile(
    const std::string& path, TokenFormat format, int64_t vocabulary,
    absl::FunctionRef<absl::Status(const AppendTokens& append)> write);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKEN_FILE_H_
