#include "engine/data/tokenizer/tokenizer_json_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/tokenizer/characters.h"
#include "engine/data/tokenizer/token_ids.h"

namespace stagecoach::engine {

using base::ObjectReader;
using nlohmann::json;

namespace {

// Returns the character by which the vocabulary writes each byte (GPT-2's bytes_to_unicode):
// itself, if it is printable and no space in Latin-1; the others are those from U+0100 on, in
// order.
std::array<int, 256> CharactersOfBytes() {
  std::array<int, 256> characters = {};
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[static_cast<size_t>(byte)] = is_printable ? byte : next++;
  }
  return characters;
}

// All of these characters are below U+0800: one byte or two.
std::string Utf8Of(int character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// The inverse of CharactersOfBytes, for whole tokens.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    for (size_t byte = 0; byte < characters_.size(); ++byte) {
      bytes_[static_cast<size_t>(characters_[byte])] = static_cast<int>(byte);
    }
  }

  std::string SymbolOf(size_t byte) const { return Utf8Of(characters_[byte]); }

  // Returns the bytes of a token; nullopt if it has other characters.
  std::optional<std::string> BytesOf(absl::string_view token) const {
    std::string bytes;
    while (!token.empty()) {
      const auto lead = static_cast<uint8_t>(token[0]);
      size_t character = lead;
      if (lead >= 0x80) {
        if (lead >= 0xE0 || token.size() < 2) return std::nullopt;
        character = size_t{lead & 0x1FU} << 6 | (static_cast<uint8_t>(token[1]) & 0x3FU);
      }
      if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(bytes_[character]));
      token.remove_prefix(lead < 0x80 ? 1 : 2);
    }
    return bytes;
  }

 private:
  const std::array<int, 256> characters_ = CharactersOfBytes();
  std::array<int, 0x200> bytes_;
};

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet* const alphabet = new ByteAlphabet();
  return *alphabet;
}

absl::Status ErrorAt(absl::string_view path, absl::string_view message) {
  return base::DataError(absl::StrCat(path, ": ", message));
}

class ModelReader {
 public:
  explicit ModelReader(bool is_byte_level) : is_byte_level_(is_byte_level) {}

  absl::StatusOr<TokenizerJsonModel> Read(const json& model) {
    ASSIGN_OR_RETURN(ObjectReader options, ObjectReader::Create(model, "$.model"));
    // Files from GPT-2's time have no type.
    ASSIGN_OR_RETURN(const std::string type, options.OptionalString("type", "BPE"));
    if (type == "BPE") {
      RETURN_IF_ERROR(ReadBpe(model, options));
    } else if ((type == "Unigram" || type == "WordPiece") && is_byte_level_) {
      return options.Error("type", absl::StrCat(Quoted(type),
                                                " is not supported behind the "
                                                "pre-tokenizer \"ByteLevel\""));
    } else if (type == "Unigram") {
      RETURN_IF_ERROR(ReadUnigram(model, options));
    } else if (type == "WordPiece") {
      RETURN_IF_ERROR(ReadWordPiece(model, options));
    } else {
      return Unsupported(options, type);
    }
    return std::move(read_);
  }

 private:
  absl::Status ReadBpe(const json& model, ObjectReader& options) {
    read_.is_bpe = true;
    RETURN_IF_ERROR(options.RequiredObject("vocab").status());
    RETURN_IF_ERROR(options.RequiredArray("merges").status());
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      ASSIGN_OR_RETURN(const std::string text, options.OptionalString(key, ""));
      if (!text.empty()) {
        return options.Error(key, absl::StrCat(Quoted(text), " is not supported"));
      }
    }
    ASSIGN_OR_RETURN(const double dropout, options.OptionalDouble("dropout", 0.0));
    if (dropout != 0.0) return options.Error("dropout", "is not supported");
    ASSIGN_OR_RETURN(const bool falls_back, options.OptionalBool("byte_fallback", false));
    ASSIGN_OR_RETURN(const std::string unknown, options.OptionalString("unk_token", ""));
    ASSIGN_OR_RETURN(bpe_.fuses_unknown, options.OptionalBool("fuse_unk", false));
    ASSIGN_OR_RETURN(const bool ignores_merges, options.OptionalBool("ignore_merges", false));
    RETURN_IF_ERROR(options.Finish());
    RETURN_IF_ERROR(ReadVocabulary(model.at("vocab")));
    if (is_byte_level_) {
      RETURN_IF_ERROR(SetBytes());
    } else {
      if (falls_back) bpe_.fallback = FallbackOf();
      if (!unknown.empty()) {
        ASSIGN_OR_RETURN(bpe_.unknown, IdOf(options, "unk_token", unknown));
      }
    }
    for (const auto& [token, id] : read_.ids) {
      size_t end = 0;
      if (!is_byte_level_ && !token.empty()) NextCharacter(token, end);
      if (end == token.size() && end > 0) bpe_.characters.emplace(token, id);
      if (!ignores_merges) continue;
      if (!is_byte_level_) {
        bpe_.whole_pieces.emplace(token, id);
      } else if (std::optional<std::string> bytes = Alphabet().BytesOf(token)) {
        bpe_.whole_pieces.emplace(*std::move(bytes), id);
      }
    }
    RETURN_IF_ERROR(ReadMerges(model.at("merges")));
    read_.model = MakePieceModel(std::move(bpe_));
    return absl::OkStatus();
  }

  absl::Status ReadUnigram(const json& model, ObjectReader& options) {
    ASSIGN_OR_RETURN(const base::ArrayReader entries, options.RequiredArray("vocab"));
    const auto most = static_cast<int64_t>(entries.size()) - 1;
    if (most < 0) return options.Error("vocab", "is empty");
    if (most >= kMaxVocabulary) return options.Error("vocab", "has too many tokens");
    Unigram unigram;
    ASSIGN_OR_RETURN(const int64_t unknown,
                     options.RequiredInt64("unk_id", {.min = 0, .max = most}));
    unigram.unknown = static_cast<int32_t>(unknown);
    ASSIGN_OR_RETURN(const bool falls_back, options.OptionalBool("byte_fallback", false));
    RETURN_IF_ERROR(options.Finish());
    int32_t id = 0;
    for (const json& entry : model.at("vocab")) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          !entry[1].is_number()) {
        return ErrorAt(absl::StrCat("$.model.vocab[", id, "]"), "expected a token and its score");
      }
      const auto& token = entry[0].get_ref<const std::string&>();
      unigram.tokens.emplace_back(token, entry[1].get<double>());
      read_.tokens.push_back(token);
      read_.ids.insert_or_assign(token, id++);
    }
    if (falls_back) unigram.fallback = FallbackOf();
    read_.model = MakePieceModel(unigram);
    return absl::OkStatus();
  }

  absl::Status ReadWordPiece(const json& model, ObjectReader& options) {
    RETURN_IF_ERROR(options.RequiredObject("vocab").status());
    WordPiece word_piece;
    ASSIGN_OR_RETURN(const std::string unknown, options.OptionalString("unk_token", "[UNK]"));
    ASSIGN_OR_RETURN(word_piece.prefix, options.OptionalString("continuing_subword_prefix", "##"));
    ASSIGN_OR_RETURN(word_piece.most_characters,
                     options.OptionalInt64("max_input_chars_per_word", 100, {.min = 0}));
    RETURN_IF_ERROR(options.Finish());
    RETURN_IF_ERROR(ReadVocabulary(model.at("vocab")));
    ASSIGN_OR_RETURN(word_piece.unknown, IdOf(options, "unk_token", unknown));
    word_piece.tokens = read_.ids;
    read_.model = MakePieceModel(std::move(word_piece));
    return absl::OkStatus();
  }

  absl::StatusOr<int32_t> IdOf(const ObjectReader& options, absl::string_view key,
                               const std::string& token) const {
    const auto found = read_.ids.find(token);
    if (found != read_.ids.end()) return found->second;
    return options.Error(key, absl::StrCat(Quoted(token), " is not in the vocabulary"));
  }

  ByteFallback FallbackOf() const {
    ByteFallback fallback;
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = read_.ids.find(absl::StrFormat("<0x%02X>", byte));
      if (found != read_.ids.end()) fallback.ids[static_cast<size_t>(byte)] = found->second;
    }
    return fallback;
  }

  // Does not use an ObjectReader: a vocabulary may have 256,000 entries.
  absl::Status ReadVocabulary(const json& vocabulary) {
    const auto& entries = vocabulary.get_ref<const json::object_t&>();
    read_.ids.reserve(entries.size());
    read_.tokens.reserve(entries.size());
    const size_t end = EndOfIds(entries.size());
    std::vector<bool> is_taken(end);
    for (const auto& [token, value] : entries) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() >= end) {
        return ErrorAt("$.model.vocab",
                       absl::StrCat("the id of ", Quoted(token), " is none from 0 to ", end - 1));
      }
      const auto id = value.get<size_t>();
      if (is_taken[id]) {
        return ErrorAt("$.model.vocab", absl::StrCat("the id ", id, " is there twice"));
      }
      is_taken[id] = true;
      read_.ids.emplace(token, static_cast<int32_t>(id));
      if (id >= read_.tokens.size()) read_.tokens.resize(id + 1);
      read_.tokens[id] = token;
    }
    return absl::OkStatus();
  }

  absl::Status SetBytes() {
    std::array<int32_t, 256>& symbols = bpe_.bytes.emplace();
    for (size_t byte = 0; byte < symbols.size(); ++byte) {
      const std::string symbol = Alphabet().SymbolOf(byte);
      const auto found = read_.ids.find(symbol);
      if (found == read_.ids.end()) {
        return ErrorAt("$.model.vocab",
                       absl::StrCat("has no symbol ", Quoted(symbol), " for the byte ", byte));
      }
      symbols[byte] = found->second;
    }
    return absl::OkStatus();
  }

  // Reads "a b" or ["a", "b"], likewise without an ObjectReader.
  absl::Status ReadMerges(const json& merges) {
    bpe_.merges.Reserve(merges.size());
    std::string merged;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const json& merge = merges[rank];
      const auto fail = [rank](absl::string_view message) {
        return ErrorAt(absl::StrCat("$.model.merges[", rank, "]"), message);
      };
      absl::string_view left, right;
      if (merge.is_string()) {
        const absl::string_view both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        left = both.substr(0, space);
        if (space != absl::string_view::npos) right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      }
      if (left.empty() || right.empty()) {
        return fail("expected two tokens, as \"a b\" or [\"a\", \"b\"]");
      }
      merged.assign(left.data(), left.size());
      merged.append(right.data(), right.size());
      int32_t ids[3];
      const absl::string_view parts[3] = {left, right, merged};
      for (int i = 0; i < 3; ++i) {
        const auto found = read_.ids.find(parts[i]);
        if (found == read_.ids.end()) {
          return fail(absl::StrCat(Quoted(parts[i]), " is not in the vocabulary"));
        }
        ids[i] = found->second;
      }
      bpe_.merges.Add(ids[0], ids[1], static_cast<int32_t>(rank), ids[2]);
    }
    return absl::OkStatus();
  }

  const bool is_byte_level_;
  Bpe bpe_;
  TokenizerJsonModel read_;
};

}  // namespace

absl::StatusOr<TokenizerJsonModel> ReadTokenizerJsonModel(json& model, bool is_byte_level) {
  EraseNulls(model);
  return ModelReader(is_byte_level).Read(model);
}

std::optional<std::string> BytesOfByteLevelToken(absl::string_view token) {
  return Alphabet().BytesOf(token);
}

void EraseNulls(json& object) {
  for (auto item = object.begin(); item != object.end();) {
    item = item->is_null() ? object.erase(item) : std::next(item);
  }
}

size_t EndOfIds(size_t tokens) {
  constexpr size_t kMostUnused = size_t{1} << 16;
  return std::min(tokens + kMostUnused, static_cast<size_t>(kMaxVocabulary));
}

absl::Status RequireBool(ObjectReader& reader, absl::string_view key, bool expected,
                         bool if_missing) {
  ASSIGN_OR_RETURN(const bool value, reader.OptionalBool(key, if_missing));
  if (value == expected) return absl::OkStatus();
  return reader.Error(key, absl::StrCat(value ? "true" : "false", " is not supported"));
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text), "\"");
}

absl::Status Unsupported(const ObjectReader& reader, absl::string_view type) {
  return reader.Error("type", absl::StrCat(Quoted(type), " is not supported"));
}

}  // namespace stagecoach::engine
