#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/data/token_ids.h"
#include "engine/data/tokenizer/byte_level_bpe.h"

// How a tokenizer.json says what the header has. Where an option is null, it is as if it were not
// there.
namespace stagecoach::engine {

using base::ObjectReader;
using nlohmann::json;

namespace {

// The character by which the vocabulary writes a byte (GPT-2's bytes_to_unicode): itself, if it is
// printable and no space in Latin-1; the others are those from U+0100 on, in order.
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

  // The bytes that a token is; nullopt if it has other characters.
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

absl::Status ErrorAt(absl::string_view path, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text), "\"");
}

void EraseNulls(json& object) {
  for (auto item = object.begin(); item != object.end();) {
    item = item->is_null() ? object.erase(item) : std::next(item);
  }
}

// Ids are below it: few of them are unused, so that a small file makes no large vocabulary.
size_t EndOfIds(size_t tokens) {
  constexpr size_t kMostUnused = size_t{1} << 16;
  return std::min(tokens + kMostUnused, static_cast<size_t>(kMaxVocabulary));
}

// Fails if the key is there with another value.
absl::Status RequireBool(ObjectReader& reader, absl::string_view key, bool expected,
                         bool if_missing) {
  ASSIGN_OR_RETURN(const bool value, reader.OptionalBool(key, if_missing));
  if (value == expected) return absl::OkStatus();
  return reader.Error(key, absl::StrCat(value ? "true" : "false", " is not supported"));
}

absl::Status Unsupported(const ObjectReader& reader, absl::string_view type) {
  return reader.Error("type", absl::StrCat(Quoted(type), " is not supported"));
}

class TokenizerJsonReader {
 public:
  absl::StatusOr<ByteLevelBpe> Read(json& root) {
    if (root.is_object()) EraseNulls(root);
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(root));
    ASSIGN_OR_RETURN(const std::string version, reader.RequiredString("version"));
    if (version != "1.0") {
      return reader.Error("version", absl::StrCat(Quoted(version), ", expected \"1.0\""));
    }
    // The model's type first: it tells best what is wrong with the file.
    RETURN_IF_ERROR(ReadModel(root, reader));
    ASSIGN_OR_RETURN(std::optional<ObjectReader> normalizer, reader.OptionalObject("normalizer"));
    if (normalizer.has_value()) {
      ASSIGN_OR_RETURN(const std::string type, normalizer->RequiredString("type"));
      return Unsupported(*normalizer, type);
    }
    RETURN_IF_ERROR(ReadAddedTokens(reader));
    ASSIGN_OR_RETURN(ObjectReader pre_tokenizer, reader.RequiredObject("pre_tokenizer"));
    RETURN_IF_ERROR(ReadPreTokenizer(std::move(pre_tokenizer)));
    ASSIGN_OR_RETURN(std::optional<ObjectReader> post, reader.OptionalObject("post_processor"));
    if (post.has_value()) RETURN_IF_ERROR(ReadPostProcessor(*std::move(post)));
    ASSIGN_OR_RETURN(ObjectReader decoder, reader.RequiredObject("decoder"));
    ASSIGN_OR_RETURN(const std::string decoder_type, decoder.RequiredString("type"));
    if (decoder_type != "ByteLevel") return Unsupported(decoder, decoder_type);
    reader.Has("truncation");
    reader.Has("padding");
    RETURN_IF_ERROR(reader.Finish());
    return std::move(bpe_);
  }

 private:
  void SetToken(int64_t id, std::string bytes) {
    const auto index = static_cast<size_t>(id);
    if (index >= bpe_.tokens.size()) bpe_.tokens.resize(index + 1);
    bpe_.tokens[index] = std::move(bytes);
  }

  absl::Status ReadModel(json& root, ObjectReader& reader) {
    RETURN_IF_ERROR(reader.RequiredObject("model").status());
    json& model = root.at("model");
    EraseNulls(model);
    ASSIGN_OR_RETURN(ObjectReader options, ObjectReader::Create(model, "$.model"));
    // Files of GPT-2's time have no type.
    ASSIGN_OR_RETURN(const std::string type, options.OptionalString("type", "BPE"));
    if (type != "BPE") return Unsupported(options, type);
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
    RETURN_IF_ERROR(RequireBool(options, "byte_fallback", false, false));
    RETURN_IF_ERROR(options.OptionalString("unk_token", "").status());
    RETURN_IF_ERROR(options.OptionalBool("fuse_unk", false).status());
    ASSIGN_OR_RETURN(const bool ignores_merges, options.OptionalBool("ignore_merges", false));
    RETURN_IF_ERROR(options.Finish());
    RETURN_IF_ERROR(ReadVocabulary(model.at("vocab"), ignores_merges));
    return ReadMerges(model.at("merges"));
  }

  // Not by an ObjectReader: a vocabulary may have 256,000 entries.
  absl::Status ReadVocabulary(const json& vocabulary, bool ignores_merges) {
    const auto& entries = vocabulary.get_ref<const json::object_t&>();
    ids_.reserve(entries.size());
    bpe_.tokens.reserve(entries.size());
    const size_t end = EndOfIds(entries.size());
    std::vector<bool> is_taken(end);
    for (const auto& [token, value] : entries) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() >= end) {
        return ErrorAt("$.model.vocab",
                       absl::StrCat("the id of ", Quoted(token), " is none from 0 to ", end - 1));
      }
      const auto id = value.get<int64_t>();
      const auto index = static_cast<size_t>(id);
      if (is_taken[index]) {
        return ErrorAt("$.model.vocab", absl::StrCat("the id ", id, " is there twice"));
      }
      is_taken[index] = true;
      ids_.emplace(token, static_cast<int32_t>(id));
      std::optional<std::string> bytes = alphabet_.BytesOf(token);
      if (ignores_merges && bytes.has_value()) {
        bpe_.whole_pieces.emplace(*bytes, static_cast<int32_t>(id));
      }
      SetToken(id, bytes.has_value() ? *std::move(bytes) : token);
    }
    for (size_t byte = 0; byte < bpe_.symbols.size(); ++byte) {
      const auto found = ids_.find(alphabet_.SymbolOf(byte));
      if (found == ids_.end()) {
        return ErrorAt("$.model.vocab",
                       absl::StrCat("has no symbol ", Quoted(alphabet_.SymbolOf(byte)),
                                    " for the byte ", byte));
      }
      bpe_.symbols[byte] = found->second;
    }
    return absl::OkStatus();
  }

  // "a b" or ["a", "b"]. Likewise.
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
        const auto found = ids_.find(parts[i]);
        if (found == ids_.end()) {
          return fail(absl::StrCat(Quoted(parts[i]), " is not in the vocabulary"));
        }
        ids[i] = found->second;
      }
      bpe_.merges.Add(ids[0], ids[1], static_cast<int32_t>(rank), ids[2]);
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens(ObjectReader& reader) {
    ASSIGN_OR_RETURN(const std::optional<base::ArrayReader> tokens,
                     reader.OptionalArray("added_tokens"));
    const size_t count = tokens.has_value() ? tokens->size() : 0;
    const auto end = static_cast<int64_t>(EndOfIds(bpe_.tokens.size() + count));
    for (size_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(ObjectReader token, tokens->Object(i));
      ASSIGN_OR_RETURN(const int64_t id, token.RequiredInt64("id", {.min = 0, .max = end - 1}));
      ASSIGN_OR_RETURN(const std::string content, token.RequiredString("content"));
      if (content.empty()) return token.Error("content", "is empty");
      ASSIGN_OR_RETURN(const bool is_special, token.OptionalBool("special", false));
      ASSIGN_OR_RETURN(const bool is_normalized, token.OptionalBool("normalized", !is_special));
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        RETURN_IF_ERROR(RequireBool(token, key, false, false));
      }
      RETURN_IF_ERROR(token.Finish());
      bpe_.added[is_normalized ? 1 : 0].Add(content, static_cast<int32_t>(id));
      added_ids_.emplace(content, static_cast<int32_t>(id));
      SetToken(id, content);
    }
    for (const char* name : {"</s>", "<|end_of_text|>", "<|endoftext|>"}) {
      const auto found = added_ids_.find(name);
      if (found != added_ids_.end()) bpe_.end_of_text = found->second;
    }
    return absl::OkStatus();
  }

  absl::Status AddPattern(const ObjectReader& where, absl::string_view key,
                          absl::string_view pattern) {
    absl::StatusOr<SplitPattern> compiled = SplitPattern::Compile(pattern);
    if (!compiled.ok()) return where.Error(key, compiled.status().message());
    bpe_.patterns.push_back(*std::move(compiled));
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer(ObjectReader reader) {
    ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("type"));
    if (type != "Sequence") return ReadStep(std::move(reader), type, true, true);
    ASSIGN_OR_RETURN(const base::ArrayReader steps, reader.RequiredArray("pretokenizers"));
    RETURN_IF_ERROR(reader.Finish());
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSIGN_OR_RETURN(ObjectReader step, steps.Object(i));
      ASSIGN_OR_RETURN(const std::string step_type, step.RequiredString("type"));
      RETURN_IF_ERROR(ReadStep(std::move(step), step_type, i == 0, i + 1 == steps.size()));
    }
    return steps.size() > 0 ? absl::OkStatus() : reader.Error("pretokenizers", "is empty");
  }

  // The last one must be ByteLevel, which makes bytes of the characters.
  absl::Status ReadStep(ObjectReader reader, const std::string& type, bool is_first, bool is_last) {
    if (type != "ByteLevel" && type != "Split") return Unsupported(reader, type);
    if (is_last != (type == "ByteLevel")) {
      return reader.Error("type", "the last step is to be ByteLevel, and no other");
    }
    if (type == "ByteLevel") {
      ASSIGN_OR_RETURN(bpe_.adds_prefix_space, reader.OptionalBool("add_prefix_space", true));
      if (bpe_.adds_prefix_space && !is_first) {
        return reader.Error("add_prefix_space", "true is not supported behind a Split");
      }
      ASSIGN_OR_RETURN(const bool uses_regex, reader.OptionalBool("use_regex", true));
      RETURN_IF_ERROR(reader.OptionalBool("trim_offsets", true).status());
      RETURN_IF_ERROR(reader.Finish());
      return uses_regex ? AddPattern(reader, "use_regex", kGpt2Pattern) : absl::OkStatus();
    }
    ASSIGN_OR_RETURN(ObjectReader pattern, reader.RequiredObject("pattern"));
    ASSIGN_OR_RETURN(const std::string regex, pattern.RequiredString("Regex"));
    RETURN_IF_ERROR(pattern.Finish());
    ASSIGN_OR_RETURN(const std::string behavior, reader.RequiredString("behavior"));
    if (behavior != "Isolated") {
      return reader.Error("behavior", absl::StrCat(Quoted(behavior), " is not supported"));
    }
    RETURN_IF_ERROR(RequireBool(reader, "invert", false, false));
    RETURN_IF_ERROR(reader.Finish());
    return AddPattern(pattern, "Regex", regex);
  }

  absl::Status ReadPostProcessor(ObjectReader reader) {
    ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("type"));
    if (type == "ByteLevel") return absl::OkStatus();  // it is about offsets alone
    if (type == "TemplateProcessing") return ReadTemplate(reader);
    if (type != "Sequence") return Unsupported(reader, type);
    ASSIGN_OR_RETURN(const base::ArrayReader steps, reader.RequiredArray("processors"));
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSIGN_OR_RETURN(ObjectReader step, steps.Object(i));
      ASSIGN_OR_RETURN(const std::string step_type, step.RequiredString("type"));
      if (step_type == "ByteLevel") continue;
      if (step_type != "TemplateProcessing" || !bpe_.before_text.empty()) {
        return Unsupported(step, step_type);
      }
      RETURN_IF_ERROR(ReadTemplate(step));
    }
    return absl::OkStatus();
  }

  // Of the template for one text: what stands before it.
  absl::Status ReadTemplate(ObjectReader& reader) {
    ASSIGN_OR_RETURN(const base::ArrayReader parts, reader.RequiredArray("single"));
    ASSIGN_OR_RETURN(ObjectReader known, reader.RequiredObject("special_tokens"));
    bool is_behind_text = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      ASSIGN_OR_RETURN(ObjectReader part, parts.Object(i));
      if (is_behind_text) return parts.Error(i, "tokens behind the text are not supported");
      is_behind_text = part.Has("Sequence");
      if (is_behind_text) continue;
      ASSIGN_OR_RETURN(ObjectReader token, part.RequiredObject("SpecialToken"));
      ASSIGN_OR_RETURN(const std::string name, token.RequiredString("id"));
      ASSIGN_OR_RETURN(ObjectReader special, known.RequiredObject(name));
      ASSIGN_OR_RETURN(const base::ArrayReader ids, special.RequiredArray("ids"));
      const auto most = static_cast<int64_t>(bpe_.tokens.size()) - 1;
      for (size_t k = 0; k < ids.size(); ++k) {
        ASSIGN_OR_RETURN(const int64_t id, ids.Int64(k, {.min = 0, .max = most}));
        bpe_.before_text.push_back(static_cast<int32_t>(id));
      }
    }
    if (is_behind_text) return absl::OkStatus();
    return reader.Error("single", "has no place for the text");
  }

  const ByteAlphabet alphabet_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // of the model; by the file's own names
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  ByteLevelBpe bpe_;
};

}  // namespace

absl::StatusOr<ByteLevelBpe> ParseTokenizerJson(absl::string_view text) {
  ASSIGN_OR_RETURN(json root, base::ParseJson(text));
  return TokenizerJsonReader().Read(root);
}

}  // namespace stagecoach::engine
