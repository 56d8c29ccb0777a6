#include "engine/data/tokens/tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/mapped_file.h"
#include "base/text/utf8.h"
#include "engine/data/data_files.h"
#include "engine/data/file_name.h"
#include "engine/data/random_streams.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/data/tokens/prepare.h"
#include "engine/data/tokens/token_file.h"
#include "engine/data/tokens/token_info.h"

namespace stagecoach::engine {

namespace {

TokenFormat FormatOf(const std::string& path) {
  if (HasEnding(path, ".bin")) return TokenFormat::kBin;
  return HasEnding(path, ".npy") ? TokenFormat::kNpy : TokenFormat::kText;
}

// Returns the suffix of a directory's files of tokens; "" if it has none.
std::string SuffixIn(const std::string& directory) {
  for (const char* suffix : {".bin", ".npy"}) {
    if (base::Exists(absl::StrCat(directory, "/train", suffix))) return suffix;
  }
  return "";
}

bool IsTokenFile(const std::string& path) {
  return HasEnding(path, ".txt") || FormatOf(path) != TokenFormat::kText;
}

// Returns whether a file, or what is in a directory, is text.
bool IsText(const std::string& path) {
  return FormatOf(path) == TokenFormat::kText && SuffixIn(path).empty();
}

using SharedTokenizer = std::shared_ptr<const Tokenizer>;

// Returns null if none is named, or bytes are.
absl::StatusOr<SharedTokenizer> LoadTokenizer(const TokenOptions& options) {
  if (options.tokenizer.empty() || options.tokenizer == kBytesTokenizer) return nullptr;
  return Tokenizer::Load(options.tokenizer);
}

absl::StatusOr<TokenIds> EncodeText(const Tokenizer& tokenizer, absl::string_view text) {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(text));
  return TokenIds::Of(std::move(ids), tokenizer.vocabulary());
}

// Returns what is known about the ids at that path.
absl::StatusOr<TokenInfo> InfoOf(const std::string& path, const SharedTokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::optional<TokenInfo> found, ReadTokenInfo(path));
  TokenInfo info = found.value_or(TokenInfo());
  if (tokenizer == nullptr) return info;
  if (found.has_value() && info.tokenizer_hash != tokenizer->hash()) {
    return base::DataError(absl::StrCat(path, " has the ids of the tokenizer ", info.tokenizer_hash,
                                        " (", info.tokenizer, "), and not of ", tokenizer->hash()),
                           absl::StatusCode::kFailedPrecondition);
  }
  info.vocabulary = tokenizer->vocabulary();
  info.tokenizer_hash = tokenizer->hash();
  return info;
}

absl::Status CheckCount(const TokenInfo& info, const std::string& file, const TokenIds& ids) {
  const auto known = info.tokens.find(std::filesystem::path(file).filename().string());
  if (known == info.tokens.end() || known->second == ids.size()) return absl::OkStatus();
  return base::DataError(absl::StrCat(file, " has ", ids.size(), " tokens, and not ", known->second,
                                      ", as the file beside it says: prepare it again"));
}

absl::StatusOr<TokenIds> MapIds(const std::string& file, const TokenInfo& info,
                                int64_t vocabulary) {
  ASSIGN_OR_RETURN(TokenIds ids, TokenIds::Map(file, FormatOf(file), vocabulary));
  RETURN_IF_ERROR(CheckCount(info, file, ids));
  return ids;
}

using Files = std::vector<std::string>;

// Returns the ids of all files, or the bytes of all texts, one after the other.
absl::StatusOr<TokenIds> MapAll(const Files& files, const std::vector<TokenInfo>& infos,
                                int64_t vocabulary) {
  std::vector<TokenIds> parts;
  for (size_t i = 0; i < files.size(); ++i) {
    ASSIGN_OR_RETURN(TokenIds ids, MapIds(files[i], infos[i], vocabulary));
    if (ids.size() == 0 && files.size() > 1) {
      return base::DataError(absl::StrCat(files[i], ": the file is empty"));
    }
    parts.push_back(std::move(ids));
  }
  return TokenIds::Join(std::move(parts));
}

std::string DescribeInfo(const TokenInfo& info) {
  if (info.tokenizer_hash.empty()) return "a tokenizer that is not known";
  return absl::StrCat("the tokenizer ", info.tokenizer_hash, ", a vocabulary of ", info.vocabulary);
}

// Returns what is known about the ids of each file. Several files have ids of one tokenizer.
absl::StatusOr<std::vector<TokenInfo>> InfosOf(const Files& files,
                                               const SharedTokenizer& tokenizer) {
  std::vector<TokenInfo> infos;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(infos.emplace_back(), InfoOf(file, tokenizer));
    const TokenInfo& first = infos.front();
    const TokenInfo& info = infos.back();
    if (info.tokenizer_hash == first.tokenizer_hash && info.vocabulary == first.vocabulary) {
      continue;
    }
    return base::DataError(absl::StrCat(file, " has the ids of ", DescribeInfo(info), ", and ",
                                        files.front(), " those of ", DescribeInfo(first)));
  }
  return infos;
}

// Returns an error unless all files are text, or all have ids, as the first one.
absl::Status CheckAreAlike(const Files& files) {
  for (const std::string& file : files) {
    if (IsText(file) == IsText(files.front())) continue;
    const auto describe = [](const std::string& name) {
      return IsText(name) ? " is text" : " has ids of tokens";
    };
    return base::DataError(absl::StrCat(file, describe(file), ", and ", files.front(),
                                        describe(files.front()),
                                        ": several files are of one kind"));
  }
  return absl::OkStatus();
}

// Texts in memory, one after the other: those of a file are used in place.
class Texts {
 public:
  static absl::StatusOr<Texts> Open(const Files& files) {
    Texts texts;
    for (const std::string& name : files) {
      ASSIGN_OR_RETURN(base::MappedFile file,
                       base::MappedFile::OpenUncompressed(name, kMaxUncompressedBytes));
      const absl::string_view text = file.contents();
      RETURN_IF_ERROR(base::Annotate(base::CheckUtf8(text), name));
      if (files.size() == 1) {
        texts.only_.emplace(std::move(file));
        continue;
      }
      if (text.empty()) return base::DataError(absl::StrCat(name, ": the file is empty"));
      absl::StrAppend(&texts.joined_, text);
    }
    return texts;
  }

  absl::string_view contents() const { return only_.has_value() ? only_->contents() : joined_; }

 private:
  std::optional<base::MappedFile> only_;
  std::string joined_;
};

struct TwoParts {
  TokenIds train;
  std::optional<TokenIds> test;
  DataEncoding encoding = {};  // the vocabulary is 0 if unknown
};

absl::StatusOr<TwoParts> EncodeParts(const Files& files, const Tokenizer& tokenizer,
                                     const TokenOptions& options) {
  ASSIGN_OR_RETURN(const Texts texts, Texts::Open(files));
  const absl::string_view text = texts.contents();
  const DataEncoding encoding = {.vocabulary = tokenizer.vocabulary(),
                                 .tokenizer = tokenizer.hash()};
  const bool has_test = options.sets == Sets::kBoth;
  const size_t cut = has_test ? TrainingBytes(text, options.test_fraction) : text.size();
  ASSIGN_OR_RETURN(TokenIds train, EncodeText(tokenizer, text.substr(0, cut)));
  if (!has_test) return TwoParts{std::move(train), {}, encoding};
  ASSIGN_OR_RETURN(TokenIds test, EncodeText(tokenizer, text.substr(cut)));
  return TwoParts{std::move(train), std::move(test), encoding};
}

// Returns the two files of a directory.
absl::StatusOr<TwoParts> MapDirectory(const std::string& path, const TokenOptions& options,
                                      const TokenInfo& info) {
  const std::string suffix = SuffixIn(path);
  if (suffix == ".bin" && base::Exists(path + "/train.npy")) {
    return base::DataError(
        absl::StrCat(path, " has train.bin and train.npy: name a directory with one of them"));
  }
  const DataEncoding encoding = {.vocabulary = info.vocabulary, .tokenizer = info.tokenizer_hash};
  ASSIGN_OR_RETURN(TokenIds train,
                   MapIds(absl::StrCat(path, "/train", suffix), info, options.vocabulary));
  if (options.sets == Sets::kTraining) return TwoParts{std::move(train), {}, encoding};
  ASSIGN_OR_RETURN(TokenIds test,
                   MapIds(absl::StrCat(path, "/val", suffix), info, options.vocabulary));
  return TwoParts{std::move(train), std::move(test), encoding};
}

// Returns the two parts of all files.
absl::StatusOr<TwoParts> MapParts(const Files& files, const TokenOptions& options,
                                  const std::vector<TokenInfo>& infos) {
  const TokenInfo& info = infos.front();
  const DataEncoding encoding = {.vocabulary = info.vocabulary, .tokenizer = info.tokenizer_hash};
  ASSIGN_OR_RETURN(TokenIds all, MapAll(files, infos, options.vocabulary));
  if (options.sets == Sets::kTraining) return TwoParts{std::move(all), {}, encoding};
  const double share = (1.0 - options.test_fraction) * static_cast<double>(all.size());
  const auto trained = static_cast<int64_t>(share);
  return TwoParts{all.Part(0, trained), all.Part(trained, all.size() - trained), encoding};
}

// Ids of another vocabulary are hardly bytes, and a model that knows them learned other texts.
absl::Status CheckMayBeBytes(const std::string& path, const TokenOptions& options) {
  if (options.tokenizer == kBytesTokenizer || options.vocabulary == 0 ||
      options.vocabulary == kBytesVocabulary) {
    return absl::OkStatus();
  }
  return base::DataError(absl::StrCat(
      path, ": each of its bytes would be a token, but the vocabulary is of ", options.vocabulary,
      ": name the model's tokenizer with --tokenizer FILE, or say --tokenizer bytes"));
}

absl::StatusOr<TwoParts> LoadParts(const Files& files, const TokenOptions& options) {
  const std::string& path = files.front();
  ASSIGN_OR_RETURN(const SharedTokenizer tokenizer, LoadTokenizer(options));
  RETURN_IF_ERROR(CheckAreAlike(files));
  if (IsText(path)) {
    if (tokenizer != nullptr) return EncodeParts(files, *tokenizer, options);
    RETURN_IF_ERROR(CheckMayBeBytes(path, options));
    ASSIGN_OR_RETURN(TwoParts parts,
                     MapParts(files, options, std::vector<TokenInfo>(files.size())));
    parts.encoding = {.vocabulary = kBytesVocabulary, .tokens_are_bytes = true};
    return parts;
  }
  if (options.tokenizer == kBytesTokenizer) {
    return base::DataError(
        absl::StrCat(path, " has ids of tokens: bytes are tokens of text alone"));
  }
  ASSIGN_OR_RETURN(const std::vector<TokenInfo> infos, InfosOf(files, tokenizer));
  return IsTokenFile(path) ? MapParts(files, options, infos)
                           : MapDirectory(path, options, infos.front());
}

// Checks, for a model that was trained on data with this encoding, whether it knows what the tokens
// mean.
absl::Status CheckTokens(const DataEncoding& encoding, bool are_bytes,
                         absl::string_view tokenizer) {
  if (encoding.vocabulary == 0 || encoding.tokens_are_bytes != are_bytes) {
    return base::DataError(
        absl::StrCat("the model was not trained on ", are_bytes ? "text" : "ids of tokens",
                     ": it is not known what ", are_bytes ? "bytes" : "these", " are to it"),
        absl::StatusCode::kFailedPrecondition);
  }
  if (encoding.tokenizer == tokenizer) return absl::OkStatus();
  if (tokenizer.empty()) {
    return base::DataError(
        absl::StrCat("the model was trained on tokens of the tokenizer ", encoding.tokenizer,
                     ", and it is not known of which these are: name it, with --tokenizer"),
        absl::StatusCode::kFailedPrecondition);
  }
  return base::DataError(
      absl::StrCat("the model was trained on tokens of ",
                   encoding.tokenizer.empty() ? "a tokenizer that is not known"
                                              : absl::StrCat("the tokenizer ", encoding.tokenizer),
                   ", and these are of ", tokenizer),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenDataset>> TokenDataset::Create(TokenIds ids,
                                                                         int64_t context,
                                                                         int64_t vocabulary) {
  if (context < 1) {
    return base::DataError(absl::StrCat("a context of ", context, " tokens, expected at least 1"));
  }
  if (ids.size() <= context) {
    return base::DataError(absl::StrCat(ids.size(), " tokens, expected at least ", context + 1,
                                        " for a context of ", context));
  }
  if (vocabulary < 2 || vocabulary > kMaxVocabulary || ids.largest() >= vocabulary) {
    return base::DataError(absl::StrCat("a vocabulary of ", vocabulary, ", expected one of ",
                                        std::max<int64_t>(2, ids.largest() + 1), " to ",
                                        kMaxVocabulary));
  }
  const SampleSpec spec = TokenSpec(context, vocabulary);
  return std::shared_ptr<const TokenDataset>(new TokenDataset(spec, std::move(ids), 0));
}

std::shared_ptr<const Dataset> TokenDataset::ForEpoch(uint64_t seed, int64_t epoch) const {
  const base::RandomStream random(seed, StreamId(DataStream::kTokenOrigin, epoch));
  const uint64_t origin = random.Below(0, static_cast<uint64_t>(context()));
  return std::shared_ptr<const Dataset>(
      new TokenDataset(spec(), ids_, static_cast<int64_t>(origin)));
}

int64_t TokenDataset::BeginOf(int64_t row) const {
  return std::min(origin_ + row * context(), ids_.size() - 1 - context());
}

void TokenDataset::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  ids_.Copy(BeginOf(row),
            absl::MakeSpan(reinterpret_cast<int32_t*>(out), static_cast<size_t>(context())));
}

void TokenDataset::ReadTarget(int64_t row, std::byte* out) const {
  ids_.Copy(BeginOf(row) + 1,
            absl::MakeSpan(reinterpret_cast<int32_t*>(out), static_cast<size_t>(context())));
}

bool HoldsTokens(const std::string& spec, bool has_tokenizer) {
  const std::string path = FirstDataFile(spec);
  if (IsTokenFile(path) || !SuffixIn(path).empty()) return true;
  const bool is_path = !path.empty() && !absl::StartsWith(path, "synthetic:");
  return has_tokenizer && is_path && !base::IsFolder(path);
}

bool HoldsText(const std::string& spec) {
  return HoldsTokens(spec, true) && IsText(FirstDataFile(spec));
}

absl::StatusOr<TrainTest> LoadTokens(const std::string& path, const TokenOptions& options) {
  if (!(options.test_fraction > 0 && options.test_fraction < 1)) {
    return base::DataError(absl::StrCat("a test fraction of ", options.test_fraction,
                                        ", expected a number between 0 and 1"));
  }
  ASSIGN_OR_RETURN(const Files files, DataFilesOf(path));
  ASSIGN_OR_RETURN(TwoParts parts, LoadParts(files, options));
  DataEncoding& encoding = parts.encoding;
  if (options.vocabulary != 0) encoding.vocabulary = options.vocabulary;
  if (encoding.vocabulary == 0) {
    const int64_t largest_tested = parts.test.has_value() ? parts.test->largest() : -1;
    encoding.vocabulary = std::max(parts.train.largest(), largest_tested) + 1;
  }
  auto train = TokenDataset::Create(std::move(parts.train), options.context, encoding.vocabulary);
  RETURN_IF_ERROR(base::Annotate(train.status(), absl::StrCat(path, ": training set")));
  encoding.rows_move = true;
  if (!parts.test.has_value()) return TrainTest{*std::move(train), nullptr, std::move(encoding)};
  auto test = TokenDataset::Create(*std::move(parts.test), options.context, encoding.vocabulary);
  RETURN_IF_ERROR(base::Annotate(test.status(), absl::StrCat(path, ": test set")));
  return TrainTest{*std::move(train), *std::move(test), std::move(encoding)};
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadTokenSamples(const std::string& path,
                                                                const TokenOptions& options,
                                                                const DataEncoding& encoding) {
  ASSIGN_OR_RETURN(Files files, DataFilesOf(path));
  const auto load = [&]() -> absl::StatusOr<TokenIds> {
    ASSIGN_OR_RETURN(const SharedTokenizer tokenizer, LoadTokenizer(options));
    RETURN_IF_ERROR(CheckAreAlike(files));
    if (!IsText(files.front())) {
      ASSIGN_OR_RETURN(const std::vector<TokenInfo> infos, InfosOf(files, tokenizer));
      // If a model does not know its tokenizer, ids of any tokenizer will do, as long as they fit.
      const bool knows = !encoding.tokenizer.empty();
      RETURN_IF_ERROR(CheckTokens(encoding, false, knows ? infos.front().tokenizer_hash : ""));
      const std::string suffix = IsTokenFile(files.front()) ? "" : SuffixIn(files.front());
      if (!suffix.empty()) files.front() += "/val" + suffix;
      return MapAll(files, infos, encoding.vocabulary);
    }
    RETURN_IF_ERROR(
        CheckTokens(encoding, tokenizer == nullptr, tokenizer == nullptr ? "" : tokenizer->hash()));
    if (tokenizer == nullptr) {
      return MapAll(files, std::vector<TokenInfo>(files.size()), encoding.vocabulary);
    }
    ASSIGN_OR_RETURN(const Texts texts, Texts::Open(files));
    absl::StatusOr<TokenIds> ids = EncodeText(*tokenizer, texts.contents());
    RETURN_IF_ERROR(base::Annotate(ids.status(), path));
    return ids;
  };
  ASSIGN_OR_RETURN(TokenIds ids, load());
  auto created = TokenDataset::Create(std::move(ids), options.context, encoding.vocabulary);
  RETURN_IF_ERROR(base::Annotate(created.status(), files.size() == 1 ? files.front() : path));
  return *std::move(created);
}

}  // namespace stagecoach::engine
