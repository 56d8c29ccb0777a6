#include "engine/data/tokens/prepare.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/mapped_file.h"
#include "base/text/utf8.h"
#include "engine/data/file_name.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/data/tokens/token_file.h"
#include "engine/data/tokens/token_info.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kMaxCopiedTokenizerBytes = int64_t{1} << 30;

std::string NameIn(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// Encodes one text into one or two files.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const Tokenizer& tokenizer, absl::string_view text)
      : options_(options), tokenizer_(tokenizer), text_(text) {
    prepared_.text_bytes = static_cast<int64_t>(text.size());
    prepared_.vocabulary = tokenizer.vocabulary();
    prepared_.token_bytes = TokenBytes(tokenizer.vocabulary());
    info_ = {.vocabulary = tokenizer.vocabulary(), .tokenizer_hash = tokenizer.hash()};
  }

  absl::StatusOr<PreparedTokens> ToFile() {
    RETURN_IF_ERROR(Write(options_.output, 0, text_.size()));
    info_.tokenizer = std::filesystem::absolute(options_.tokenizer).string();
    RETURN_IF_ERROR(WriteTokenInfo(options_.output, info_));
    return std::move(prepared_);
  }

  absl::StatusOr<PreparedTokens> ToFolder() {
    RETURN_IF_ERROR(base::MakeFolders(options_.output));
    const size_t cut = TrainingBytes(text_, options_.test_fraction);
    RETURN_IF_ERROR(Write(absl::StrCat(options_.output, "/train.bin"), 0, cut));
    RETURN_IF_ERROR(Write(absl::StrCat(options_.output, "/val.bin"), cut, text_.size()));
    ASSIGN_OR_RETURN(const std::string contents,
                     base::ReadFile(options_.tokenizer, kMaxCopiedTokenizerBytes));
    info_.tokenizer =
        absl::EndsWith(options_.tokenizer, ".json") ? "tokenizer.json" : "tokenizer.model";
    RETURN_IF_ERROR(
        base::WriteFileAtomically(absl::StrCat(options_.output, "/", info_.tokenizer), contents));
    RETURN_IF_ERROR(WriteTokenInfo(options_.output, info_));
    return std::move(prepared_);
  }

 private:
  // Writes the ids of a part of the text.
  absl::Status Write(const std::string& path, size_t begin, size_t end) {
    absl::Status encoded;
    absl::StatusOr<int64_t> tokens = WriteTokenFile(
        path, absl::EndsWith(path, ".npy") ? TokenFormat::kNpy : TokenFormat::kBin,
        tokenizer_.vocabulary(), [&](const AppendTokens& append) {
          absl::Status appended;
          encoded = tokenizer_.Encode(
              text_.substr(begin, end - begin), [&](absl::Span<const int32_t> ids, size_t bytes) {
                appended = append(ids);
                if (appended.ok() && options_.on_progress) {
                  appended = options_.on_progress(static_cast<int64_t>(begin + bytes),
                                                  static_cast<int64_t>(text_.size()));
                }
                return appended;
              });
          if (!appended.ok()) encoded = absl::OkStatus();
          return appended.ok() ? encoded : appended;
        });
    if (!encoded.ok()) return AboutText(encoded, begin);
    RETURN_IF_ERROR(tokens.status());
    prepared_.files.push_back({path, *tokens});
    info_.tokens[NameIn(path)] = *tokens;
    return absl::OkStatus();
  }

  absl::Status AboutText(const absl::Status& status, size_t begin) const {
    const std::string where =
        begin == 0 ? options_.text : absl::StrCat(options_.text, ", from byte ", begin, " on");
    return base::DataError(absl::StrCat(where, ": ", status.message()));
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  const absl::string_view text_;
  PreparedTokens prepared_;
  TokenInfo info_;
};

}  // namespace

size_t TrainingBytes(absl::string_view text, double test_fraction) {
  constexpr size_t kNearby = size_t{1} << 20;
  const double share = (1.0 - test_fraction) * static_cast<double>(text.size());
  size_t cut = std::min(text.size(), static_cast<size_t>(share));
  const size_t line_end = text.substr(cut, kNearby).find('\n');
  if (line_end != absl::string_view::npos && cut + line_end + 1 < text.size()) {
    return cut + line_end + 1;
  }
  while (cut < text.size() && (static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) ++cut;
  return cut;
}

absl::StatusOr<PreparedTokens> PrepareTokens(const PrepareOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                   Tokenizer::Load(options.tokenizer));
  ASSIGN_OR_RETURN(const base::MappedFile file,
                   base::MappedFile::OpenUncompressed(options.text, kMaxUncompressedBytes));
  // The text is checked before anything is written.
  RETURN_IF_ERROR(base::Annotate(base::CheckUtf8(file.contents()), options.text));
  Preparation preparation(options, *tokenizer, file.contents());
  return IsTokenFileName(options.output) ? preparation.ToFile() : preparation.ToFolder();
}

}  // namespace stagecoach::engine
