#include "partition/io/transformer_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "base/hugging_face_keys.h"
#include "base/json.h"
#include "base/line.h"
#include "base/status_macros.h"
#include "base/toml.h"
#include "partition/io/transformer_keys.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using nlohmann::json;

constexpr int64_t kDescriptionVersion = 1;
constexpr int64_t kMaxDescriptionBytes = int64_t{1} << 20;
constexpr int64_t kMostAutomaticRows = 16;
constexpr std::array<const char*, 3> kAttentions = {"stored", "recomputed", "flash"};
constexpr std::array<const char*, 2> kRecomputes = {"full", "selective"};
constexpr std::array<const char*, 3> kOperators = {"scores", "norms", "activation"};

// A family of Hugging Face's, with the defaults of its configuration.
struct Family {
  const char* type;
  bool is_gpt2 = false;  // else like Llama
  Bias bias = Bias::kNone;
  int64_t kv_heads = 0, experts = 0, experts_per_token = 1, head_size = 0;
  bool qk_norm = false;
  bool may_have_bias = false;  // which is then a key
  bool is_gemma = false, post_norms = false;
  bool has_window = false;  // in some configurations: a key
  int64_t window = 0, global_every = 0;
  bool may_use_window = false;  // only if "use_sliding_window" is set
  bool has_period = false;      // "sliding_window_pattern", for global_every
};
constexpr Family kFamilies[] = {
    {.type = "gpt2", .is_gpt2 = true, .bias = Bias::kAll},
    {.type = "llama", .may_have_bias = true},
    {.type = "mistral", .kv_heads = 8, .has_window = true, .window = 4096},
    {.type = "mixtral", .kv_heads = 8, .experts = 8, .experts_per_token = 2, .has_window = true},
    {.type = "phi3", .may_have_bias = true, .has_window = true},
    {.type = "qwen2",
     .bias = Bias::kQkv,
     .kv_heads = 32,
     .has_window = true,
     .window = 4096,
     .may_use_window = true},
    {.type = "qwen3",
     .kv_heads = 32,
     .head_size = 128,
     .qk_norm = true,
     .may_have_bias = true,
     .has_window = true,
     .window = 4096,
     .may_use_window = true},
    {.type = "gemma", .kv_heads = 16, .head_size = 256, .is_gemma = true},
    {.type = "gemma2",
     .kv_heads = 4,
     .head_size = 256,
     .is_gemma = true,
     .post_norms = true,
     .has_window = true,
     .window = 4096,
     .global_every = 2},
    {.type = "gemma3_text",
     .kv_heads = 4,
     .head_size = 256,
     .qk_norm = true,
     .is_gemma = true,
     .post_norms = true,
     .has_window = true,
     .window = 4096,
     .global_every = 6,
     .has_period = true}};
// Hugging Face's keys that do not affect costs.
constexpr const char* kFreeKeysOfGpt2[] = {"n_ctx",
                                           "layer_norm_epsilon",
                                           "reorder_and_upcast_attn",
                                           "scale_attn_weights",
                                           "scale_attn_by_inverse_layer_idx",
                                           "n_special",
                                           "predict_special_tokens",
                                           "summary_type",
                                           "summary_use_proj",
                                           "summary_activation",
                                           "summary_proj_to_labels",
                                           "summary_first_dropout"};
constexpr const char* kFreeKeysOfLlama[] = {"rms_norm_eps",
                                            "rope_theta",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "rope_interleaved",
                                            "pretraining_tp",
                                            "max_sequence_length",
                                            "router_aux_loss_coef",
                                            "router_jitter_noise",
                                            "output_router_logits",
                                            "use_mrope",
                                            "original_max_position_embeddings",
                                            "auto_map"};
constexpr const char* kFreeKeysOfGemma[] = {"rms_norm_eps",
                                            "rope_theta",
                                            "rope_local_base_freq",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "query_pre_attn_scalar",
                                            "attn_logit_softcapping",
                                            "final_logit_softcapping",
                                            "_sliding_window_pattern",
                                            "cache_implementation"};

// The values that have been read, from one file or from two in succession.
struct Read {
  TransformerDescription description;
  std::map<std::string, std::string> spelled;  // the keys that were present, by their first name

  bool Has(const char* key) const { return spelled.contains(key); }
};

// Returns true if there is a value. Counts as a use of the key.
bool HasValue(const json& document, ObjectReader& reader, const char* key) {
  return reader.Has(key) && !document[key].is_null();
}

std::string Quoted(absl::Span<const char* const> words) {
  return absl::StrCat("\"", absl::StrJoin(words, "\", \""), "\"");
}

absl::StatusOr<size_t> IndexOf(const std::string& word, absl::Span<const char* const> words,
                               const char* key, const std::string& more,
                               const ObjectReader& reader) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  return reader.Error(key, absl::StrCat("must be ", Quoted(words), more, ", found \"",
                                        absl::CHexEscape(word), "\""));
}

// A key has one value, several, or is left to the planner.
enum class Form : uint8_t { kAbsent, kOne, kList, kAny };

Form FormOf(const json& document, const char* key) {
  const auto found = document.find(key);
  if (found == document.end() || found->is_null()) return Form::kAbsent;
  if (found->is_array()) return Form::kList;
  return *found == json("auto") ? Form::kAny : Form::kOne;
}

// Returns the values of "auto": 1, 2, 4, ...
std::vector<int64_t> PowersOfTwo(int64_t max) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= max; power *= 2) powers.push_back(power);
  return powers;
}

// Reads the numbers of a key that has a list or "auto".
absl::StatusOr<std::vector<int64_t>> ReadNumbers(const json& document, const char* key,
                                                 int64_t max_auto, ObjectReader& reader) {
  if (FormOf(document, key) == Form::kAny) {
    RETURN_IF_ERROR(reader.RequiredString(key).status());
    return PowersOfTwo(max_auto);
  }
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray(key));
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(numbers.emplace_back(), array.Int64(i));
  }
  return numbers;
}

// Returns the indices into `words` of a key's values: one, a list, or "auto" for all. Empty: there
// is no such key.
absl::StatusOr<std::vector<size_t>> ReadWords(const json& document, const char* key,
                                              absl::Span<const char* const> words,
                                              ObjectReader& reader) {
  std::vector<std::string> found;
  std::vector<size_t> indices;
  switch (FormOf(document, key)) {
    case Form::kAbsent:
      reader.Has(key);
      return indices;
    case Form::kAny:
      RETURN_IF_ERROR(reader.RequiredString(key).status());
      found.assign(words.begin(), words.end());
      break;
    case Form::kOne: {
      ASSIGN_OR_RETURN(found.emplace_back(), reader.RequiredString(key));
      break;
    }
    case Form::kList: {
      ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray(key));
      for (size_t i = 0; i < array.size(); ++i) {
        ASSIGN_OR_RETURN(found.emplace_back(), array.String(i));
      }
    }
  }
  for (const std::string& word : found) {
    ASSIGN_OR_RETURN(const size_t index,
                     IndexOf(word, words, key, ", a list of these, or \"auto\"", reader));
    if (std::find(indices.begin(), indices.end(), index) != indices.end()) {
      return reader.Error(key, absl::StrCat("has \"", word, "\" twice"));
    }
    indices.push_back(index);
  }
  if (indices.empty()) return reader.Error(key, "must have at least one kind");
  return indices;
}

absl::Status ReadTensorParallel(const json& document, ObjectReader& reader,
                                TransformerDescription& description) {
  const Form form = FormOf(document, "tensor_parallel");
  if (form != Form::kList && form != Form::kAny) return absl::OkStatus();
  description.any_tensor_parallel = form == Form::kAny;
  ASSIGN_OR_RETURN(description.tensor_parallel,
                   ReadNumbers(document, "tensor_parallel", kMaxTensorParallel, reader));
  int64_t previous = 0;
  for (const int64_t devices : description.tensor_parallel) {
    if (devices > previous && devices <= kMaxTensorParallel) {
      previous = devices;
      continue;
    }
    return reader.Error("tensor_parallel", absl::StrCat("must ascend from at least 1 to at most ",
                                                        kMaxTensorParallel, ", found ", devices));
  }
  if (previous == 0) return reader.Error("tensor_parallel", "must have at least one number");
  return absl::OkStatus();
}

// ---- Families ----

absl::Status ExpectWord(const json& document, ObjectReader& reader, const char* key,
                        absl::Span<const char* const> words) {
  if (!HasValue(document, reader, key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string word, reader.RequiredString(key));
  return IndexOf(word, words, key, "", reader).status();
}

absl::Status ReadGpt2(const json& document, ObjectReader& reader, Transformer& t) {
  RETURN_IF_ERROR(ExpectWord(document, reader, "activation_function",
                             {"gelu_new", "gelu_pytorch_tanh", "gelu"}));
  t.dropout = false;
  for (const char* const key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    ASSIGN_OR_RETURN(const double share, reader.OptionalDouble(key, 0.1));  // as in transformers
    t.dropout = t.dropout || share > 0;
  }
  return absl::OkStatus();
}

// Reads which layers have a window, and which.
absl::Status ReadWindow(const json& document, ObjectReader& reader, const Family& family,
                        Transformer& t) {
  if (!family.has_window) return absl::OkStatus();
  t.window = family.window;
  t.global_every = family.global_every;
  if (reader.Has("sliding_window")) {
    t.window = 0;
    if (!document["sliding_window"].is_null()) {
      ASSIGN_OR_RETURN(t.window, reader.RequiredInt64("sliding_window", {.min = 1}));
    }
  }
  if (family.may_use_window) {
    ASSIGN_OR_RETURN(const bool is_used, reader.OptionalBool("use_sliding_window", false));
    ASSIGN_OR_RETURN(t.global_first, reader.OptionalInt64("max_window_layers", 28, {.min = 0}));
    if (!is_used) t.window = 0;
  }
  if (family.has_period) {
    ASSIGN_OR_RETURN(t.global_every,
                     reader.OptionalInt64("sliding_window_pattern", t.global_every, {.min = 0}));
  }
  const char* const layers = HasValue(document, reader, "layers") ? "layers" : "num_hidden_layers";
  if (!document.contains(layers)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t count, reader.RequiredInt64(layers));
  ASSIGN_OR_RETURN(const auto pattern, base::ReadWindowPattern(document, reader, count));
  if (pattern.has_value()) {
    if (pattern->has_window && t.window == 0) {
      return reader.Error("layer_types", "has layers with a window, and there is none");
    }
    t.global_first = pattern->global_first;
    t.global_every = pattern->global_every;
    if (!pattern->has_window) t.window = 0;
  }
  if (t.global_first >= count || t.global_every == 1) t.window = 0;
  if (t.window == 0) t.global_first = t.global_every = 0;
  return absl::OkStatus();
}

// Sets what the models with RMS norms, gates and rotary positions have in common.
absl::Status ReadGated(const json& document, ObjectReader& reader, Transformer& t) {
  t.mlp = Mlp::kSwiGlu;
  t.norm = Norm::kRmsNorm;
  t.positions = Positions::kRotary;
  t.tie_word_embeddings = false;
  t.dropout = false;
  for (const char* const key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    if (!HasValue(document, reader, key)) continue;
    RETURN_IF_ERROR(reader.RequiredDouble(key, {.min = 0, .max = 0}).status());
  }
  return absl::OkStatus();
}

absl::Status ReadGemma(const json& document, ObjectReader& reader, const Family& family,
                       Transformer& t) {
  RETURN_IF_ERROR(ReadGated(document, reader, t));
  t.tie_word_embeddings = true;
  t.post_norms = family.post_norms;
  RETURN_IF_ERROR(
      ExpectWord(document, reader, "hidden_act", {"gelu_pytorch_tanh", "gelu_new", "gelu"}));
  RETURN_IF_ERROR(
      ExpectWord(document, reader, "hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}));
  for (const char* const key : {"attention_bias", "use_bidirectional_attention"}) {
    ASSIGN_OR_RETURN(const bool is_set, reader.OptionalBool(key, false));
    if (is_set) return reader.Error(key, "is true, of which no costs are known here");
  }
  return ReadWindow(document, reader, family, t);
}

absl::Status ReadLlama(const json& document, ObjectReader& reader, const Family& family,
                       Transformer& t) {
  RETURN_IF_ERROR(ReadGated(document, reader, t));
  RETURN_IF_ERROR(ExpectWord(document, reader, "hidden_act", {"silu"}));
  if (family.may_have_bias) {
    ASSIGN_OR_RETURN(const bool of_attention, reader.OptionalBool("attention_bias", false));
    ASSIGN_OR_RETURN(const bool of_mlp, reader.OptionalBool("mlp_bias", false));
    if (of_mlp && !of_attention) {
      return reader.Error("mlp_bias", "is true, which attention_bias is not; expected both");
    }
    t.bias = of_mlp ? Bias::kAll : of_attention ? Bias::kAttention : Bias::kNone;
  }
  return ReadWindow(document, reader, family, t);
}

// Reads a document of one of the families: its values, and all keys that do not affect costs.
absl::Status ReadFamily(const json& document, ObjectReader& reader, Read& read) {
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("model_type"));
  const auto* const family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                          [&](const Family& own) { return own.type == type; });
  if (family == std::end(kFamilies)) {
    std::vector<const char*> types;
    for (const Family& own : kFamilies) types.push_back(own.type);
    return IndexOf(type, types, "model_type", "", reader).status();
  }
  Transformer& t = read.description.transformer;
  t.bias = family->bias;
  t.kv_heads = family->kv_heads;
  t.head_size = family->head_size;
  t.qk_norm = family->qk_norm;
  t.experts = family->experts;
  t.experts_per_token = family->experts_per_token;
  t.attention = Attention::kFlash;
  read.description.attentions = {Attention::kFlash};
  if (!family->is_gpt2 && !HasValue(document, reader, "mlp_hidden") &&
      !HasValue(document, reader, "intermediate_size")) {
    RETURN_IF_ERROR(reader.RequiredInt64("intermediate_size").status());
  }
  if (family->is_gpt2) return ReadGpt2(document, reader, t);
  return family->is_gemma ? ReadGemma(document, reader, *family, t)
                          : ReadLlama(document, reader, *family, t);
}

absl::Status FinishFamily(const json& document, ObjectReader& reader) {
  const std::string type = document["model_type"];
  const absl::Span<const char* const> free = type == "gpt2" ? absl::MakeConstSpan(kFreeKeysOfGpt2)
                                             : absl::StartsWith(type, "gemma")
                                                 ? absl::MakeConstSpan(kFreeKeysOfGemma)
                                                 : absl::MakeConstSpan(kFreeKeysOfLlama);
  return base::CheckOtherConfigKeys(document, reader, free);
}

// ---- One document ----

absl::Status ReadInteger(const json& document, ObjectReader& reader, const IntegerKey& key,
                         Read& read) {
  const char* found = nullptr;
  for (const char* const name : key.names) {
    if (name == nullptr || !HasValue(document, reader, name)) continue;
    if (found != nullptr) {
      return reader.Error(name, absl::StrCat("is \"", found, "\", which is there too: give one"));
    }
    found = name;
  }
  if (found == nullptr) return absl::OkStatus();
  read.spelled[key.names[0]] = found;
  ASSIGN_OR_RETURN(read.description.transformer.*key.member,
                   reader.RequiredInt64(found, {.min = key.min, .max = key.max}));
  return absl::OkStatus();
}

absl::Status ReadKinds(const json& document, ObjectReader& reader,
                       TransformerDescription& description) {
  Transformer& t = description.transformer;
  ASSIGN_OR_RETURN(const std::vector<size_t> attentions,
                   ReadWords(document, "attention", kAttentions, reader));
  if (!attentions.empty()) description.attentions.clear();
  for (const size_t word : attentions) {
    description.attentions.push_back(static_cast<Attention>(word));
  }
  t.attention = description.attentions.front();
  ASSIGN_OR_RETURN(const std::vector<size_t> recomputes,
                   ReadWords(document, "recompute", kRecomputes, reader));
  if (!recomputes.empty()) description.recomputes.clear();
  for (const size_t word : recomputes) {
    description.recomputes.push_back(static_cast<Recompute>(word));
  }
  t.recompute = description.recomputes.front();
  ASSIGN_OR_RETURN(const std::vector<size_t> operators,
                   ReadWords(document, "recompute_operators", kOperators, reader));
  if (operators.empty()) return absl::OkStatus();
  const auto has = [&](size_t word) {
    return std::find(operators.begin(), operators.end(), word) != operators.end();
  };
  t.repeated = {.scores = has(0), .norms = has(1), .activation = has(2)};
  return absl::OkStatus();
}

// Reads the keys of a document, which override what has been read.
absl::Status ReadKeys(const json& document, ObjectReader& reader, Read& read) {
  TransformerDescription& description = read.description;
  Transformer& t = description.transformer;
  RETURN_IF_ERROR(ReadTensorParallel(document, reader, description));
  const bool has_list = !description.tensor_parallel.empty();
  for (const IntegerKey& key : kIntegerKeys) {
    if (key.member == &Transformer::tensor_parallel && has_list) continue;
    RETURN_IF_ERROR(ReadInteger(document, reader, key, read));
  }
  switch (FormOf(document, "micro_batch_rows")) {
    case Form::kAbsent:
      reader.Has("micro_batch_rows");
      break;
    case Form::kOne: {
      ASSIGN_OR_RETURN(const int64_t rows, reader.RequiredInt64("micro_batch_rows"));
      t.micro_batch_rows = {rows};
      break;
    }
    default: {
      ASSIGN_OR_RETURN(t.micro_batch_rows,
                       ReadNumbers(document, "micro_batch_rows", kMostAutomaticRows, reader));
    }
  }
  for (const SwitchKey& key : kSwitchKeys) {
    if (!HasValue(document, reader, key.name)) continue;
    ASSIGN_OR_RETURN(t.*key.member, reader.OptionalBool(key.name, false));
  }
  for (const RealKey& key : kRealKeys) {
    if (!HasValue(document, reader, key.name)) continue;
    ASSIGN_OR_RETURN(t.*key.member, reader.RequiredDouble(key.name));
  }
  for (const WordKey& key : kWordKeys) {
    if (!HasValue(document, reader, key.name)) continue;
    ASSIGN_OR_RETURN(const std::string word, reader.RequiredString(key.name));
    const auto* const end = std::find(key.words.begin(), key.words.end(), nullptr);
    ASSIGN_OR_RETURN(const size_t index,
                     IndexOf(word, {key.words.data(), static_cast<size_t>(end - key.words.begin())},
                             key.name, "", reader));
    key.set(t, index);
  }
  return ReadKinds(document, reader, description);
}

absl::Status ReadDocument(const json& document, ObjectReader& reader, Read& read) {
  const bool is_family = reader.Has("model_type");
  if (is_family) RETURN_IF_ERROR(ReadFamily(document, reader, read));
  RETURN_IF_ERROR(ReadKeys(document, reader, read));
  return is_family ? FinishFamily(document, reader) : reader.Finish();
}

absl::Status ReadConfig(const std::string& path, Read& read) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxDescriptionBytes));
  const auto parse = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const json document,
                     base::ParseJson(text, {.max_bytes = kMaxDescriptionBytes}));
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
    RETURN_IF_ERROR(reader.RequiredString("model_type").status());
    return base::WithJsonPlace(ReadDocument(document, reader, read), text);
  };
  return base::InFile(parse(), path);
}

absl::Status ReadNamedConfig(ObjectReader& reader, const std::optional<std::string>& folder,
                             Read& read) {
  if (!reader.Has("config")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string path, reader.RequiredString("config"));
  if (!folder.has_value()) return reader.Error("config", "is of a file, and this text is of none");
  if (reader.Has("model_type")) return reader.Error("model_type", "is that of config: give one");
  return ReadConfig((std::filesystem::path(*folder) / path).string(), read);
}

// Derives what follows from everything that was read, and checks that it is a transformer.
absl::Status Complete(ObjectReader& reader, bool is_config, Read& read) {
  Transformer& t = read.description.transformer;
  if (!read.Has("sequence") && t.context > 0) {
    t.sequence = t.context;
    read.spelled["sequence"] = read.spelled["context"];
  }
  for (const IntegerKey& key : kIntegerKeys) {
    if (!key.is_required || read.Has(key.names[0])) continue;
    const char* const name = is_config && key.names[1] != nullptr ? key.names[1] : key.names[0];
    RETURN_IF_ERROR(reader.RequiredInt64(name).status());
  }
  if (t.bytes_per_value >= 4 && !read.Has("optimizer_bytes_per_parameter")) {
    t.optimizer_bytes_per_parameter = 8;
  }
  const absl::Status checked = CheckTransformer(t);
  if (checked.ok()) return checked;
  const std::string message(checked.message());
  const std::string key = message.substr(0, message.find(':'));
  const auto spelled = read.spelled.find(key);
  return absl::InvalidArgumentError(absl::StrCat(
      "$.", spelled == read.spelled.end() ? key : spelled->second, message.substr(key.size())));
}

absl::StatusOr<TransformerDescription> ReadDescription(const json& document, bool is_config,
                                                       const std::optional<std::string>& folder) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  Read read;
  if (is_config) {
    RETURN_IF_ERROR(reader.RequiredString("model_type").status());
  } else {
    ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
    if (version != kDescriptionVersion) {
      return reader.Error(
          "version",
          absl::StrCat("version ", version, ": this program reads version ", kDescriptionVersion));
    }
    RETURN_IF_ERROR(ReadNamedConfig(reader, folder, read));
  }
  RETURN_IF_ERROR(ReadDocument(document, reader, read));
  RETURN_IF_ERROR(Complete(reader, is_config, read));
  return std::move(read.description);
}

}  // namespace

absl::StatusOr<TransformerDescription> ParseTransformer(absl::string_view text,
                                                        const std::optional<std::string>& folder) {
  const bool is_config = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
  const base::JsonLimits limits = {.max_bytes = kMaxDescriptionBytes};
  ASSIGN_OR_RETURN(const json document,
                   is_config ? base::ParseJson(text, limits) : base::ParseToml(text, limits));
  absl::StatusOr<TransformerDescription> description = ReadDescription(document, is_config, folder);
  if (description.ok()) return description;
  return is_config ? base::WithJsonPlace(description.status(), text)
                   : base::WithTomlPlace(description.status(), text);
}

absl::StatusOr<TransformerDescription> ReadTransformer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxDescriptionBytes));
  absl::StatusOr<TransformerDescription> description =
      ParseTransformer(text, std::filesystem::path(path).parent_path().string());
  if (!description.ok()) return base::InFile(description.status(), path);
  return description;
}

}  // namespace stagecoach::partition
