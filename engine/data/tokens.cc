#include "engine/data/tokens.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Shape;

namespace {

TokenFormat FormatOf(const std::string& path) {
  if (absl::EndsWith(path, ".txt")) return TokenFormat::kText;
  return absl::EndsWith(path, ".npy") ? TokenFormat::kNpy : TokenFormat::kBin;
}

// The end of the names of a directory's files; "" if it has none of tokens.
std::string SuffixIn(const std::string& directory) {
  for (const char* suffix : {".bin", ".npy"}) {
    if (base::Exists(absl::StrCat(directory, "/train", suffix))) return suffix;
  }
  return "";
}

bool IsTokenFile(const std::string& path) {
  return absl::EndsWith(path, ".txt") || absl::EndsWith(path, ".bin") ||
         absl::EndsWith(path, ".npy");
}

struct TwoParts {
  TokenIds train, test;
  bool are_bytes = false;
};

absl::StatusOr<TwoParts> MapParts(const std::string& path, int64_t vocabulary) {
  const std::string suffix = IsTokenFile(path) ? "" : SuffixIn(path);
  if (suffix == ".bin" && base::Exists(path + "/train.npy")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has train.bin and train.npy: name a directory with one of them"));
  }
  if (!suffix.empty()) {
    const auto map = [&](const char* name) {
      const std::string file = absl::StrCat(path, "/", name, suffix);
      return TokenIds::Map(file, FormatOf(file), vocabulary);
    };
    ASSIGN_OR_RETURN(TokenIds train, map("train"));
    ASSIGN_OR_RETURN(TokenIds test, map("val"));
    return TwoParts{std::move(train), std::move(test)};
  }
  const TokenFormat format = FormatOf(path);
  ASSIGN_OR_RETURN(const TokenIds all, TokenIds::Map(path, format, vocabulary));
  // Without a product that could overflow.
  const int64_t trained = all.size() / 10 * 9 + all.size() % 10 * 9 / 10;
  return TwoParts{all.Part(0, trained), all.Part(trained, all.size() - trained),
                  format == TokenFormat::kText};
}

int64_t VocabularyOf(const TokenOptions& options, bool are_bytes, int64_t largest) {
  if (options.vocabulary != 0) return options.vocabulary;
  return are_bytes ? kBytesVocabulary : largest + 1;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenDataset>> TokenDataset::Create(TokenIds ids,
                                                                         int64_t context,
                                                                         int64_t vocabulary) {
  if (context < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", context, " tokens, expected at least 1"));
  }
  if (ids.size() <= context) {
    return absl::InvalidArgumentError(absl::StrCat(ids.size(), " tokens, expected at least ",
                                                   context + 1, " for a context of ", context));
  }
  if (vocabulary < 2 || vocabulary > kMaxVocabulary || ids.largest() >= vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", vocabulary, ", expected one of ",
                     std::max<int64_t>(2, ids.largest() + 1), " to ", kMaxVocabulary));
  }
  const SampleSpec spec = {
      .inputs = {{.name = "tokens",
                  .type = DType::kInt32,
                  .shape = Shape{context},
                  .vocabulary = vocabulary}},
      .target = {
          .kind = TargetSpec::Kind::kClasses, .shape = Shape{context}, .classes = vocabulary}};
  return std::shared_ptr<const TokenDataset>(new TokenDataset(spec, std::move(ids)));
}

void TokenDataset::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  ids_.Copy(row * context(),
            absl::MakeSpan(reinterpret_cast<int32_t*>(out), static_cast<size_t>(context())));
}

void TokenDataset::ReadTarget(int64_t row, std::byte* out) const {
  ids_.Copy(row * context() + 1,
            absl::MakeSpan(reinterpret_cast<int32_t*>(out), static_cast<size_t>(context())));
}

bool HoldsTokens(const std::string& path) { return IsTokenFile(path) || !SuffixIn(path).empty(); }

absl::StatusOr<TrainTest> LoadTokens(const std::string& path, const TokenOptions& options) {
  ASSIGN_OR_RETURN(TwoParts parts, MapParts(path, options.vocabulary));
  const int64_t largest = std::max(parts.train.largest(), parts.test.largest());
  const int64_t vocabulary = VocabularyOf(options, parts.are_bytes, largest);
  auto train = TokenDataset::Create(std::move(parts.train), options.context, vocabulary);
  RETURN_IF_ERROR(base::Annotate(train.status(), absl::StrCat(path, ": training set")));
  auto test = TokenDataset::Create(std::move(parts.test), options.context, vocabulary);
  RETURN_IF_ERROR(base::Annotate(test.status(), absl::StrCat(path, ": test set")));
  return TrainTest{*std::move(train),
                   *std::move(test),
                   {.vocabulary = vocabulary, .tokens_are_bytes = parts.are_bytes}};
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadTokenSamples(const std::string& path,
                                                                const TokenOptions& options,
                                                                const DataEncoding& encoding) {
  const std::string suffix = IsTokenFile(path) ? "" : SuffixIn(path);
  const std::string file = suffix.empty() ? path : absl::StrCat(path, "/val", suffix);
  const TokenFormat format = FormatOf(file);
  const bool are_bytes = format == TokenFormat::kText;
  if (encoding.vocabulary == 0 || encoding.tokens_are_bytes != are_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model was not trained on ", are_bytes ? "text" : "ids of tokens",
                     ": it is not known what ", are_bytes ? "bytes" : "these", " are to it"));
  }
  ASSIGN_OR_RETURN(TokenIds ids, TokenIds::Map(file, format, encoding.vocabulary));
  auto created = TokenDataset::Create(std::move(ids), options.context, encoding.vocabulary);
  RETURN_IF_ERROR(base::Annotate(created.status(), file));
  return *std::move(created);
}

}  // namespace stagecoach::engine
