// Reads a tokenizer.json, as far as the header of Tokenizer says. An option that is null counts as
// absent.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "engine/data/tokenizer/text_pipeline.h"
#include "engine/data/tokenizer/tokenizer_json_model.h"

namespace stagecoach::engine {

using base::ArrayReader;
using base::ObjectReader;
using nlohmann::json;

namespace {

constexpr char kUsualSpace[] = "\xE2\x96\x81";  // U+2581

// Describes what tokens stand for.
struct Decoding {
  bool of_bytes = false;  // ByteLevel's
  std::string space;      // what stands for a space; "": nothing does
  bool falls_back = false;
  std::optional<std::string> word_prefix;  // of tokens that continue a word; others begin one
  bool cleans_up = false;                  // WordPiece's: no space in front of punctuation
};

void EraseNullsInside(json& value) {
  if (value.is_object()) EraseNulls(value);
  if (!value.is_structured()) return;
  for (json& inner : value) EraseNullsInside(inner);
}

// Returns a text as a pattern.
std::string PatternOf(absl::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

// Cleans up the text of each token as the library does.
std::string CleanedUp(std::string text) {
  constexpr std::pair<const char*, const char*> kSteps[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& step : kSteps) absl::StrReplaceAll({step}, &text);
  return text;
}

class TokenizerJsonReader {
 public:
  absl::StatusOr<TextPipeline> Read(json& root) {
    if (root.is_object()) EraseNulls(root);
    for (const char* const key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
      if (root.is_object() && root.contains(key)) EraseNullsInside(root[key]);
    }
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(root));
    ASSIGN_OR_RETURN(const std::string version, reader.RequiredString("version"));
    if (version != "1.0") {
      return reader.Error("version", absl::StrCat(Quoted(version), ", expected \"1.0\""));
    }
    RETURN_IF_ERROR(reader.RequiredObject("model").status());
    ASSIGN_OR_RETURN(std::optional<ObjectReader> pre_tokenizer,
                     reader.OptionalObject("pre_tokenizer"));
    // The model's type comes first: it tells best what is wrong with the file.
    ASSIGN_OR_RETURN(model_, ReadTokenizerJsonModel(root.at("model"), IsByteLevel(root)));
    pipeline_.model = std::move(model_.model);
    ASSIGN_OR_RETURN(std::optional<ObjectReader> normalizer, reader.OptionalObject("normalizer"));
    if (normalizer.has_value()) RETURN_IF_ERROR(ReadNormalizer(*std::move(normalizer)));
    ASSIGN_OR_RETURN(std::optional<ObjectReader> decoder, reader.OptionalObject("decoder"));
    Decoding decoding;
    if (!decoder.has_value()) {
      decoding.word_prefix = "";
      pipeline_.drops_first_space = true;
    } else {
      RETURN_IF_ERROR(ReadDecoder(*std::move(decoder), decoding));
    }
    SetTokens(decoding);
    RETURN_IF_ERROR(ReadAddedTokens(reader));
    if (pre_tokenizer.has_value()) RETURN_IF_ERROR(ReadPreTokenizer(*std::move(pre_tokenizer)));
    ASSIGN_OR_RETURN(std::optional<ObjectReader> post, reader.OptionalObject("post_processor"));
    if (post.has_value()) RETURN_IF_ERROR(ReadPostProcessor(*std::move(post)));
    reader.Has("truncation");
    reader.Has("padding");
    RETURN_IF_ERROR(reader.Finish());
    DivideWords();
    return std::move(pipeline_);
  }

 private:
  // Returns whether the last step turns characters into bytes.
  static bool IsByteLevel(const json& root) {
    const auto is_one = [](const json& step) {
      return step.is_object() && step.contains("type") && step["type"] == "ByteLevel";
    };
    if (!root.contains("pre_tokenizer")) return false;
    const json& steps = root["pre_tokenizer"];
    if (!steps.contains("pretokenizers")) return is_one(steps);
    const json& list = steps["pretokenizers"];
    return list.is_array() && !list.empty() && is_one(list.back());
  }

  void SetTokens(const Decoding& decoding) {
    decoding_ = decoding;
    for (const std::string& token : model_.tokens) pipeline_.tokens.push_back(TextOf(token));
  }

  // Returns what a token stands for, with a space in front if it begins a word.
  std::string TextOf(const std::string& token) const {
    if (decoding_.of_bytes) return BytesOfByteLevelToken(token).value_or(token);
    unsigned byte = 0;
    if (decoding_.falls_back && token.size() == 6 && token.starts_with("<0x") &&
        token.ends_with(">") && absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
      return {static_cast<char>(byte)};
    }
    if (decoding_.word_prefix.has_value()) {
      const std::string& prefix = *decoding_.word_prefix;
      const bool goes_on = !prefix.empty() && token.starts_with(prefix);
      std::string text = goes_on ? token.substr(prefix.size()) : " " + token;
      return decoding_.cleans_up ? CleanedUp(std::move(text)) : text;
    }
    if (decoding_.space.empty()) return token;
    return absl::StrReplaceAll(token, {{decoding_.space, " "}});
  }

  // The library does not read the ids of added tokens, but counts on from those of the model.
  absl::Status ReadAddedTokens(ObjectReader& reader) {
    ASSIGN_OR_RETURN(const std::optional<ArrayReader> tokens, reader.OptionalArray("added_tokens"));
    const size_t count = tokens.has_value() ? tokens->size() : 0;
    const auto end = static_cast<int64_t>(EndOfIds(pipeline_.tokens.size() + count));
    const auto known = static_cast<int32_t>(model_.ids.size());
    int32_t next = known;
    absl::flat_hash_map<std::string, int32_t> added;
    for (size_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(ObjectReader token, tokens->Object(i));
      ASSIGN_OR_RETURN(const int64_t id, token.RequiredInt64("id", {.min = 0, .max = end - 1}));
      ASSIGN_OR_RETURN(const std::string content, token.RequiredString("content"));
      if (content.empty()) return token.Error("content", "is empty");
      ASSIGN_OR_RETURN(const bool is_special, token.OptionalBool("special", false));
      ASSIGN_OR_RETURN(const bool is_normalized, token.OptionalBool("normalized", !is_special));
      AddedTokens::Token read = {.id = static_cast<int32_t>(id)};
      ASSIGN_OR_RETURN(read.single_word, token.OptionalBool("single_word", false));
      ASSIGN_OR_RETURN(read.strips_left, token.OptionalBool("lstrip", false));
      ASSIGN_OR_RETURN(read.strips_right, token.OptionalBool("rstrip", false));
      RETURN_IF_ERROR(token.Finish());
      const auto [place, is_new] = added.try_emplace(content, next);
      const auto in_model = model_.ids.find(content);
      if (is_new && in_model != model_.ids.end()) place->second = in_model->second;
      if (place->second != id) {
        return token.Error(
            "id", absl::StrCat("is ", id, ", but the library tokenizers gives ", Quoted(content),
                               " the id ", place->second, ", whatever the file says"));
      }
      next = std::max(next, place->second + 1);
      const std::string text =
          is_normalized ? pipeline_.normalizer.Apply(content, /*is_front=*/true) : content;
      if (!text.empty()) pipeline_.added[is_normalized ? 1 : 0].Add(text, read);
      const auto index = static_cast<size_t>(id);
      if (index >= pipeline_.tokens.size()) pipeline_.tokens.resize(index + 1);
      pipeline_.tokens[index] = decoding_.of_bytes ? content : TextOf(content);
    }
    for (const char* name : {"</s>", "<|end_of_text|>", "<|endoftext|>"}) {
      const auto found = added.find(name);
      if (found != added.end()) pipeline_.end_of_text = found->second;
    }
    return absl::OkStatus();
  }

  absl::Status ReadNormalizer(ObjectReader reader) {
    using Step = Normalizer::Step;
    using Kind = Step::Kind;
    ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("type"));
    if (type == "Sequence") {
      ASSIGN_OR_RETURN(const ArrayReader steps, reader.RequiredArray("normalizers"));
      for (size_t i = 0; i < steps.size(); ++i) {
        ASSIGN_OR_RETURN(ObjectReader step, steps.Object(i));
        RETURN_IF_ERROR(ReadNormalizer(std::move(step)));
      }
      return reader.Finish();
    }
    const std::pair<const char*, Kind> plain[] = {{"NFC", Kind::kNfc},
                                                  {"NFD", Kind::kNfd},
                                                  {"NFKC", Kind::kNfkc},
                                                  {"NFKD", Kind::kNfkd},
                                                  {"Lowercase", Kind::kLowercase},
                                                  {"StripAccents", Kind::kStripAccents}};
    for (const auto& [name, kind] : plain) {
      if (type != name) continue;
      pipeline_.normalizer.Add({.kind = kind});
      return reader.Finish();
    }
    if (type == "BertNormalizer") return ReadBertNormalizer(reader);
    Step step = {.kind = Kind::kPrepend};
    if (type == "Prepend") {
      ASSIGN_OR_RETURN(step.to, reader.RequiredString("prepend"));
    } else if (type == "Replace") {
      step.kind = Kind::kReplace;
      ASSIGN_OR_RETURN(step.from, ReadText(reader));
      ASSIGN_OR_RETURN(step.to, reader.RequiredString("content"));
    } else {
      return Unsupported(reader, type);
    }
    pipeline_.normalizer.Add(std::move(step));
    return reader.Finish();
  }

  // Reads {"pattern": {"String": "a"}}.
  static absl::StatusOr<std::string> ReadText(ObjectReader& reader) {
    ASSIGN_OR_RETURN(ObjectReader pattern, reader.RequiredObject("pattern"));
    ASSIGN_OR_RETURN(const std::string text, pattern.RequiredString("String"));
    if (text.empty()) return pattern.Error("String", "is empty");
    RETURN_IF_ERROR(pattern.Finish());
    return text;
  }

  absl::Status ReadBertNormalizer(ObjectReader& reader) {
    using Kind = Normalizer::Step::Kind;
    ASSIGN_OR_RETURN(const bool cleans, reader.OptionalBool("clean_text", true));
    ASSIGN_OR_RETURN(const bool chinese, reader.OptionalBool("handle_chinese_chars", true));
    ASSIGN_OR_RETURN(const bool lowers, reader.OptionalBool("lowercase", true));
    ASSIGN_OR_RETURN(const bool strips, reader.OptionalBool("strip_accents", lowers));
    RETURN_IF_ERROR(reader.Finish());
    if (cleans) pipeline_.normalizer.Add({.kind = Kind::kCleanText});
    if (chinese) pipeline_.normalizer.Add({.kind = Kind::kSpaceChinese});
    if (strips) pipeline_.normalizer.Add({.kind = Kind::kNfd});
    if (strips) pipeline_.normalizer.Add({.kind = Kind::kStripBertAccents});
    if (lowers) pipeline_.normalizer.Add({.kind = Kind::kLowercase});
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer(ObjectReader reader) {
    ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("type"));
    if (type != "Sequence") return ReadStep(std::move(reader), type, true, true);
    ASSIGN_OR_RETURN(const ArrayReader steps, reader.RequiredArray("pretokenizers"));
    RETURN_IF_ERROR(reader.Finish());
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSIGN_OR_RETURN(ObjectReader step, steps.Object(i));
      ASSIGN_OR_RETURN(const std::string step_type, step.RequiredString("type"));
      RETURN_IF_ERROR(ReadStep(std::move(step), step_type, i == 0, i + 1 == steps.size()));
    }
    return steps.size() > 0 ? absl::OkStatus() : reader.Error("pretokenizers", "is empty");
  }

  absl::Status ReadStep(ObjectReader reader, const std::string& type, bool is_first, bool is_last) {
    if (type == "ByteLevel") return ReadByteLevel(reader, is_first, is_last);
    if (type == "Split") return ReadSplit(reader);
    if (type == "Metaspace") return ReadMetaspace(reader);
    SplitStep step = {.kind = SplitStep::Kind::kWhiteSpace};
    if (type == "Digits") {
      step.kind = SplitStep::Kind::kDigits;
      ASSIGN_OR_RETURN(step.is_single, reader.OptionalBool("individual_digits", false));
    } else if (type != "BertPreTokenizer") {
      return Unsupported(reader, type);
    }
    pipeline_.splits.push_back(std::move(step));
    return reader.Finish();
  }

  // ByteLevel turns characters into bytes.
  absl::Status ReadByteLevel(ObjectReader& reader, bool is_first, bool is_last) {
    if (!is_last) return reader.Error("type", "ByteLevel is to be the last step");
    ASSIGN_OR_RETURN(pipeline_.adds_prefix_space, reader.OptionalBool("add_prefix_space", true));
    if (pipeline_.adds_prefix_space && !is_first) {
      return reader.Error("add_prefix_space", "true is not supported behind another step");
    }
    ASSIGN_OR_RETURN(const bool uses_regex, reader.OptionalBool("use_regex", true));
    RETURN_IF_ERROR(reader.OptionalBool("trim_offsets", true).status());
    RETURN_IF_ERROR(reader.Finish());
    if (!uses_regex) return absl::OkStatus();
    return AddPattern(reader, "use_regex", kGpt2Pattern, SplitStep::Kind::kPattern);
  }

  absl::Status ReadSplit(ObjectReader& reader) {
    ASSIGN_OR_RETURN(ObjectReader pattern, reader.RequiredObject("pattern"));
    const bool is_text = pattern.Has("String");
    const char* const key = is_text ? "String" : "Regex";
    ASSIGN_OR_RETURN(const std::string text, pattern.RequiredString(key));
    RETURN_IF_ERROR(pattern.Finish());
    ASSIGN_OR_RETURN(const std::string behavior, reader.RequiredString("behavior"));
    ASSIGN_OR_RETURN(const bool inverts, reader.OptionalBool("invert", false));
    RETURN_IF_ERROR(reader.Finish());
    // Isolating what is between matches is the same as isolating the matches.
    const bool keeps_matches = behavior == "Removed" && inverts;
    if (behavior != "Isolated" && !keeps_matches) {
      return reader.Error("behavior", absl::StrCat(Quoted(behavior), " is not supported"));
    }
    return AddPattern(pattern, key, is_text ? PatternOf(text) : text,
                      keeps_matches ? SplitStep::Kind::kMatches : SplitStep::Kind::kPattern);
  }

  absl::Status AddPattern(const ObjectReader& where, absl::string_view key,
                          absl::string_view pattern, SplitStep::Kind kind) {
    absl::StatusOr<SplitPattern> compiled = SplitPattern::Compile(pattern);
    if (!compiled.ok()) return where.Error(key, compiled.status().message());
    pipeline_.splits.push_back({.kind = kind, .pattern = *std::move(compiled)});
    return absl::OkStatus();
  }

  absl::Status ReadMetaspace(ObjectReader& reader) {
    SplitStep step = {.kind = SplitStep::Kind::kSpaces};
    ASSIGN_OR_RETURN(step.prepends, ReadPrepends(reader));
    if (step.prepends == SplitStep::Prepends::kInText && pipeline_.normalizer.MayDropTheFirst()) {
      // The library regards a text without its first character as one that does not begin.
      return reader.Error("prepend_scheme",
                          "\"first\" is not supported behind a normalizer that drops characters");
    }
    ASSIGN_OR_RETURN(step.space, ReadReplacement(reader));
    ASSIGN_OR_RETURN(step.is_single, reader.OptionalBool("split", true));
    pipeline_.splits.push_back(std::move(step));
    return reader.Finish();
  }

  // Reads the scheme, also of older files, which say whether to prepend rather than where.
  static absl::StatusOr<SplitStep::Prepends> ReadPrepends(ObjectReader& reader) {
    using Prepends = SplitStep::Prepends;
    ASSIGN_OR_RETURN(const bool adds, reader.OptionalBool("add_prefix_space", true));
    ASSIGN_OR_RETURN(const std::string scheme,
                     reader.OptionalString("prepend_scheme", adds ? "always" : "never"));
    if (scheme == "always") return Prepends::kInSections;
    if (scheme == "first") return Prepends::kInText;
    if (scheme == "never") return Prepends::kNever;
    return reader.Error("prepend_scheme", absl::StrCat(Quoted(scheme), " is not supported"));
  }

  static absl::StatusOr<std::string> ReadReplacement(ObjectReader& reader) {
    RETURN_IF_ERROR(reader.OptionalString("str_rep", kUsualSpace).status());
    ASSIGN_OR_RETURN(const std::string space, reader.OptionalString("replacement", kUsualSpace));
    if (space.empty()) return reader.Error("replacement", "is empty");
    return space;
  }

  absl::Status ReadDecoder(ObjectReader reader, Decoding& decoding) {
    ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("type"));
    if (type == "ByteLevel") {
      decoding.of_bytes = true;
      return absl::OkStatus();
    }
    if (type == "Sequence") {
      ASSIGN_OR_RETURN(const ArrayReader steps, reader.RequiredArray("decoders"));
      for (size_t i = 0; i < steps.size(); ++i) {
        ASSIGN_OR_RETURN(ObjectReader step, steps.Object(i));
        RETURN_IF_ERROR(ReadDecoder(std::move(step), decoding));
      }
      return reader.Finish();
    }
    if (type == "Fuse") return reader.Finish();
    if (type == "ByteFallback") {
      decoding.falls_back = true;
    } else if (type == "Metaspace") {
      ASSIGN_OR_RETURN(decoding.space, ReadReplacement(reader));
      ASSIGN_OR_RETURN(const SplitStep::Prepends prepends, ReadPrepends(reader));
      pipeline_.drops_first_space = prepends != SplitStep::Prepends::kNever;
      RETURN_IF_ERROR(reader.OptionalBool("split", true).status());
    } else if (type == "WordPiece") {
      ASSIGN_OR_RETURN(decoding.word_prefix, reader.OptionalString("prefix", "##"));
      ASSIGN_OR_RETURN(decoding.cleans_up, reader.OptionalBool("cleanup", true));
      pipeline_.drops_first_space = true;
    } else if (type == "Replace") {
      ASSIGN_OR_RETURN(decoding.space, ReadText(reader));
      ASSIGN_OR_RETURN(const std::string content, reader.RequiredString("content"));
      if (content != " ") {
        return reader.Error("content", absl::StrCat(Quoted(content), ", expected a space"));
      }
    } else if (type == "Strip") {
      ASSIGN_OR_RETURN(const std::string content, reader.RequiredString("content"));
      ASSIGN_OR_RETURN(const int64_t start, reader.RequiredInt64("start"));
      ASSIGN_OR_RETURN(const int64_t stop, reader.RequiredInt64("stop"));
      if (content != " " || start < 0 || start > 1 || stop != 0) {
        return reader.Error("type", "Strip is supported for the first space alone");
      }
      pipeline_.drops_first_space = start == 1;
    } else {
      return Unsupported(reader, type);
    }
    return reader.Finish();
  }

  absl::Status ReadPostProcessor(ObjectReader reader) {
    ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("type"));
    if (type == "ByteLevel") return absl::OkStatus();  // it is about offsets alone
    const bool has_template = !pipeline_.before_text.empty() || !pipeline_.behind_text.empty();
    if (type == "TemplateProcessing" && !has_template) return ReadTemplate(reader);
    if (type == "BertProcessing" && !has_template) return ReadBertProcessing(reader);
    if (type == "RobertaProcessing" && !has_template) {
      // These are about offsets alone.
      RETURN_IF_ERROR(reader.OptionalBool("trim_offsets", true).status());
      RETURN_IF_ERROR(reader.OptionalBool("add_prefix_space", true).status());
      return ReadBertProcessing(reader);
    }
    if (type != "Sequence") return Unsupported(reader, type);
    ASSIGN_OR_RETURN(const ArrayReader steps, reader.RequiredArray("processors"));
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSIGN_OR_RETURN(ObjectReader step, steps.Object(i));
      RETURN_IF_ERROR(ReadPostProcessor(std::move(step)));
    }
    return absl::OkStatus();
  }

  base::Int64Range Known() const {
    return {.min = 0, .max = static_cast<int64_t>(pipeline_.tokens.size()) - 1};
  }

  // Reads the template for one text: what stands before and behind it.
  absl::Status ReadTemplate(ObjectReader& reader) {
    ASSIGN_OR_RETURN(const ArrayReader parts, reader.RequiredArray("single"));
    ASSIGN_OR_RETURN(ObjectReader known, reader.RequiredObject("special_tokens"));
    bool is_behind_text = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      ASSIGN_OR_RETURN(ObjectReader part, parts.Object(i));
      if (part.Has("Sequence")) {
        if (is_behind_text) return parts.Error(i, "the text is there twice");
        is_behind_text = true;
        continue;
      }
      ASSIGN_OR_RETURN(ObjectReader token, part.RequiredObject("SpecialToken"));
      ASSIGN_OR_RETURN(const std::string name, token.RequiredString("id"));
      ASSIGN_OR_RETURN(ObjectReader special, known.RequiredObject(name));
      ASSIGN_OR_RETURN(const ArrayReader ids, special.RequiredArray("ids"));
      for (size_t k = 0; k < ids.size(); ++k) {
        ASSIGN_OR_RETURN(const int64_t id, ids.Int64(k, Known()));
        (is_behind_text ? pipeline_.behind_text : pipeline_.before_text)
            .push_back(static_cast<int32_t>(id));
      }
    }
    if (is_behind_text) return absl::OkStatus();
    return reader.Error("single", "has no place for the text");
  }

  absl::Status ReadBertProcessing(ObjectReader& reader) {
    for (const auto& [key, to] :
         {std::pair("cls", &pipeline_.before_text), std::pair("sep", &pipeline_.behind_text)}) {
      ASSIGN_OR_RETURN(const ArrayReader token, reader.RequiredArray(key));
      if (token.size() != 2) return reader.Error(key, "expected a token and its id");
      ASSIGN_OR_RETURN(const int64_t id, token.Int64(1, Known()));
      to->push_back(static_cast<int32_t>(id));
    }
    return reader.Finish();
  }

  // A text that nothing else divides is one piece, however long. If no token continues from one
  // word to the next, its words are pieces.
  void DivideWords() {
    const std::vector<SplitStep>& splits = pipeline_.splits;
    const bool is_one_piece =
        splits.empty() ||
        (splits.size() == 1 && splits[0].kind == SplitStep::Kind::kSpaces && !splits[0].is_single);
    const std::string space = splits.empty() ? kUsualSpace : splits[0].space;
    if (!model_.is_bpe || !is_one_piece || !model_.ids.contains(space)) return;
    for (const std::string& token : model_.tokens) {
      if (CrossesWords(token, space)) return;
    }
    pipeline_.splits.push_back({.kind = SplitStep::Kind::kWords, .space = space});
  }

  TokenizerJsonModel model_;
  Decoding decoding_;
  TextPipeline pipeline_;
};

}  // namespace

absl::StatusOr<TextPipeline> ParseTokenizerJson(absl::string_view text) {
  ASSIGN_OR_RETURN(json root, base::ParseJson(text));
  return TokenizerJsonReader().Read(root);
}

}  // namespace stagecoach::engine
