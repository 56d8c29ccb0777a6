#include "engine/data/tokens/token_file.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/system_calls.h"
#include "engine/data/npy.h"

namespace stagecoach::engine {
namespace {

// Both headers have a length that does not depend on the number of tokens, so that it can be
// written last.
absl::StatusOr<std::string> TokenFileHeader(const std::string& path, TokenFormat format,
                                            size_t token_bytes, int64_t tokens) {
  if (format == TokenFormat::kNpy) return FormatNpyHeader(token_bytes == 2 ? "<u2" : "<i4", tokens);
  if (tokens > std::numeric_limits<int32_t>::max()) {
    return base::DataError(
        absl::StrCat(path, ": more than ", std::numeric_limits<int32_t>::max(),
                     " tokens, which is all that a .bin file can hold: write a .npy file"),
        absl::StatusCode::kFailedPrecondition);
  }
  const LlmcForm& form = kLlmcForms[token_bytes == kLlmcForms[0].token_bytes ? 0 : 1];
  std::vector<int32_t> header(kLlmcHeaderBytes / sizeof(int32_t));
  header[0] = form.magic;
  header[1] = form.version;
  header[2] = static_cast<int32_t>(tokens);
  return std::string(reinterpret_cast<const char*>(header.data()), kLlmcHeaderBytes);
}

// Returns the ids as little-endian tokens; this machine is little-endian (token_ids.cc).
template <typename T>
absl::string_view AsTokens(absl::Span<const int32_t> ids, std::vector<T>& values) {
  values.assign(ids.begin(), ids.end());
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

bool IsTokenFileName(absl::string_view path) {
  return absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".npy");
}

size_t TokenBytes(int64_t vocabulary) { return vocabulary <= (int64_t{1} << 16) ? 2 : 4; }

absl::StatusOr<int64_t> WriteTokenFile(
    const std::string& path, TokenFormat format, int64_t vocabulary,
    absl::FunctionRef<absl::Status(const AppendTokens& append)> write) {
  STAGECOACH_CHECK(format != TokenFormat::kText, "ids are no text");
  const size_t token_bytes = TokenBytes(vocabulary);
  int64_t tokens = 0;
  RETURN_IF_ERROR(base::ReplaceFile(
      base::SystemCalls::Kernel(), path, [&](base::FileWriter& writer) -> absl::Status {
        ASSIGN_OR_RETURN(const std::string empty, TokenFileHeader(path, format, token_bytes, 0));
        const auto begin = static_cast<int64_t>(empty.size());
        std::vector<uint16_t> narrow;
        std::vector<uint32_t> wide;
        RETURN_IF_ERROR(write([&](absl::Span<const int32_t> ids) -> absl::Status {
          const int64_t offset = begin + tokens * static_cast<int64_t>(token_bytes);
          tokens += static_cast<int64_t>(ids.size());
          // Stops early if the file would be too long.
          RETURN_IF_ERROR(TokenFileHeader(path, format, token_bytes, tokens).status());
          return writer.WriteAt(offset, token_bytes == sizeof(uint16_t) ? AsTokens(ids, narrow)
                                                                        : AsTokens(ids, wide));
        }));
        ASSIGN_OR_RETURN(const std::string header,
                         TokenFileHeader(path, format, token_bytes, tokens));
        return writer.WriteAt(0, header);
      }));
  return tokens;
}

}  // namespace stagecoach::engine
