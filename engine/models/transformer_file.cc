// ModelFileOf, TransformerOf, DifferenceOf.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "base/text/toml.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;

constexpr double kDeviation = 0.02;

// Returns the shortest text from which the value can be read back.
std::string Number(double value) { return absl::StrCat(json(value).dump()); }

std::string LinearLine(int64_t outputs, double deviation, absl::string_view more) {
  return absl::StrCat("      { type = \"linear\", outputs = ", outputs,
                      ", deviation = ", Number(deviation), more, " }");
}

// Returns the deviation of the layers before a sum, which add up over all blocks.
double SummedDeviation(const Transformer& model) {
  const double digits = 1e6;
  const double deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(model.blocks));
  return std::round(deviation * digits) / digits;
}

std::string ScalingText(const Transformer& model) {
  if (model.rotary_scaling.is_none()) return "";
  return absl::StrCat(", rotary_scaling = ", RotaryScalingText(model.rotary_scaling));
}

// The keys that say what the linear layers of a block are called, where the layers beside them do
// not (engine/nn/parsing/lora.h).
struct PartNames {
  const char* qkv = "";
  const char* attention = "";
  const char* up = "";
  const char* down = "";
};
PartNames PartNamesOf(const Transformer& model) {
  const TransformerFamily family = model.family;
  if (model.has_joined_tensors) {
    return {.qkv = R"(, parts = ["qkv_proj"])", .up = R"(, parts = ["gate_up_proj"])"};
  }
  if (family == TransformerFamily::kGptNeoX) {
    return {.qkv = R"(, parts = ["query_key_value"])",
            .attention = R"(, parts = ["dense"])",
            .up = R"(, parts = ["dense_h_to_4h"])",
            .down = R"(, parts = ["dense_4h_to_h"])"};
  }
  if (family != TransformerFamily::kOpt) return {};
  return {.qkv = R"(, parts = ["q_proj", "k_proj", "v_proj"])",
          .attention = R"(, parts = ["out_proj"])",
          .up = R"(, parts = ["fc1"])",
          .down = R"(, parts = ["fc2"])"};
}

const char* NormType(const Transformer& model) {
  return model.has_gate() ? "rms_norm" : "layer_norm";
}

// Returns the attention of a block; `is_local`: with a window.
std::string AttentionText(const Transformer& model, bool is_local) {
  std::string text = absl::StrCat("      { type = \"attention\", heads = ", model.heads);
  if (model.is_rotary()) {
    const bool has_own_base = is_local && model.local_rotary_base != 0.0;
    absl::StrAppend(&text, ", kv_heads = ", model.kv_heads, ", rotary_base = ",
                    Number(has_own_base ? model.local_rotary_base : model.rotary_base),
                    has_own_base ? "" : ScalingText(model));
    if (model.rotary_size != 0) absl::StrAppend(&text, ", rotary_size = ", model.rotary_size);
  }
  if (is_local) absl::StrAppend(&text, ", window = ", model.window);
  if (model.query_scalar != 0) {
    absl::StrAppend(&text,
                    ", scale = ", Number(1.0 / std::sqrt(static_cast<double>(model.query_scalar))));
  }
  if (model.score_cap != 0.0) absl::StrAppend(&text, ", score_cap = ", Number(model.score_cap));
  return text + " }";
}

// Returns a residual layer; `shortcut`: the layers that go around it.
std::string ResidualText(absl::Span<const std::string> layers, absl::string_view shortcut = "") {
  return absl::StrCat("  { type = \"residual\", layers = [\n", absl::StrJoin(layers, ",\n"), " ]",
                      shortcut.empty() ? "" : absl::StrCat(", shortcut = [\n", shortcut, " ]"),
                      " }");
}

std::string BlockText(const Transformer& model, bool is_local) {
  const PartNames parts = PartNamesOf(model);
  const int64_t head_size = model.size_of_head();
  const std::string norm = absl::StrCat("      { type = \"", NormType(model),
                                        "\", epsilon = ", Number(model.norm_epsilon), " }");
  const char* const bias = model.has_gate() ? ", bias = false" : "";
  const double last = SummedDeviation(model);
  std::vector<std::string> first_layers = {
      norm, LinearLine((model.heads + 2 * model.kv_heads) * head_size, kDeviation,
                       absl::StrCat(model.qkv_bias ? "" : bias, parts.qkv))};
  if (model.qk_norm) {
    first_layers.push_back(absl::StrCat("      { type = \"head_norm\", heads = ", model.heads,
                                        ", kv_heads = ", model.kv_heads,
                                        ", epsilon = ", Number(model.norm_epsilon), " }"));
  }
  first_layers.insert(first_layers.end(),
                      {AttentionText(model, is_local),
                       LinearLine(model.width, last, absl::StrCat(bias, parts.attention))});
  std::vector<std::string> second_layers = {norm};
  if (model.has_gate()) {
    const bool is_gemma = model.family == TransformerFamily::kGemma;
    second_layers.insert(
        second_layers.end(),
        {LinearLine(2 * model.hidden, kDeviation, absl::StrCat(bias, parts.up)),
         absl::StrCat("      { type = \"", is_gemma ? "geglu" : "swiglu", "\" }")});
  } else {
    second_layers.push_back(LinearLine(
        model.hidden, kDeviation,
        absl::StrCat(", activation = \"", ActivationName(model.activation), "\"", parts.up)));
  }
  second_layers.push_back(LinearLine(model.width, last, absl::StrCat(bias, parts.down)));
  if (model.has_post_norms) {
    first_layers.push_back(norm);
    second_layers.push_back(norm);
  }
  // x + attention(x) + mlp(x): around attention goes x + mlp(x).
  if (model.is_parallel) return ResidualText(first_layers, ResidualText(second_layers)) + ",\n";
  return absl::StrCat(ResidualText(first_layers), ",\n", ResidualText(second_layers), ",\n");
}

// Returns a layer of the file that repeats others.
std::string RepeatText(int64_t repeat, absl::string_view layers) {
  return absl::StrCat("\n\n[[layer]]\ntype = \"sequence\"\nrepeat = ", repeat, "\nlayers = [\n",
                      layers, "]");
}

// Returns all blocks. Of those with a window, all come last, or as many precede each of the others,
// and the rest come last.
std::string BlocksText(const Transformer& model) {
  if (model.global_first != 0) {
    return RepeatText(model.global_first, BlockText(model, /*is_local=*/false)) +
           RepeatText(model.blocks - model.global_first, BlockText(model, /*is_local=*/true));
  }
  if (model.global_every == 0) {
    return RepeatText(model.blocks, BlockText(model, /*is_local=*/model.window != 0));
  }
  const std::string local = BlockText(model, /*is_local=*/true);
  std::string text = RepeatText(
      model.blocks / model.global_every,
      absl::StrCat("{ type = \"sequence\", repeat = ", model.global_every - 1, ", layers = [\n",
                   local, "] },\n", BlockText(model, /*is_local=*/false)));
  const int64_t rest = model.blocks % model.global_every;
  return rest == 0 ? text : text + RepeatText(rest, local);
}

// Returns the factor of the embedding: transformers computes it so.
double TokenScale(const Transformer& model) { return std::sqrt(static_cast<double>(model.width)); }

std::string TokensText(const Transformer& model) {
  std::string text;
  if (!model.end_of_text.empty()) {
    absl::StrAppend(&text, "\nend_of_text = [", absl::StrJoin(model.end_of_text, ", "), "]");
  }
  if (model.begin_of_text.has_value()) {
    absl::StrAppend(&text, "\nbegin_of_text = ", *model.begin_of_text);
  }
  return text;
}

std::string PositionsText(const Transformer& model) {
  if (model.is_rotary()) return "false";
  const std::string table = model.positions == 0 ? "true" : absl::StrCat(model.positions);
  if (model.position_offset() == 0) return table;
  return absl::StrCat(table, "\nposition_offset = ", model.position_offset());
}

bool ReadScaling(const json& document, RotaryScaling& scaling) {
  absl::StatusOr<base::ObjectReader> reader = base::ObjectReader::Create(document);
  if (!reader.ok()) return false;
  absl::StatusOr<RotaryScaling> parsed = ParseRotaryScaling(*std::move(reader));
  if (!parsed.ok()) return false;
  scaling = *std::move(parsed);
  return true;
}

// Reads what the attention of Gemma has beside its window: of a block with one, if there is one,
// and of one without, if there are both.
void ReadGemmaAttention(const json& own, const json* global, Transformer& model) {
  const auto number = [](const json& layer, const char* key, double otherwise) {
    return layer.contains(key) && layer[key].is_number() ? layer[key].get<double>() : otherwise;
  };
  const double scale = number(own, "scale", 0.0);
  if (scale > 1e-3 && scale < 1e3) {
    model.query_scalar = std::llround(1.0 / (scale * scale));
  }
  model.score_cap = number(own, "score_cap", 0.0);
  if (global == nullptr) return;
  const double base = number(*global, "rotary_base", 0.0);
  const bool has_other_scaling =
      global->contains("rotary_scaling") && !own.contains("rotary_scaling");
  if (base != model.rotary_base || has_other_scaling) {
    model.local_rotary_base = std::exchange(model.rotary_base, base);
  }
}

// Returns whether counts that are computed with are in their range.
bool HasHeads(const Transformer& model) {
  const auto is_count = [](int64_t count) { return count >= 1 && count <= kMaxTransformerExtent; };
  return is_count(model.width) && is_count(model.heads) && is_count(model.kv_heads);
}

// Reads the extents off a document, at the places where ModelFileOf puts them.
std::optional<Transformer> ExtentsOf(const json& document) {
  const auto at = [&](const std::string& pointer) -> const json* {
    const json::json_pointer place(pointer);
    return document.contains(place) ? &document[place] : nullptr;
  };
  const auto integer = [&](const std::string& pointer, int64_t& value) {
    const json* const found = at(pointer);
    if (found == nullptr || !found->is_number_integer()) return false;
    value = found->get<int64_t>();
    return true;
  };
  const auto has_type = [&](const std::string& layer, const char* type) {
    const json* const found = at(layer + "/type");
    return found != nullptr && *found == type;
  };
  Transformer model;
  // Where the first block is, and the first of those without a window, if others have one.
  std::string block = "/layer/1/layers", global_block;
  if (!integer("/layer/1/repeat", model.blocks) || model.blocks > kMaxTransformerExtent) {
    return std::nullopt;
  }
  if (has_type(block + "/0", "sequence")) {
    int64_t locals = 0, rest = 0;
    if (!integer(block + "/0/repeat", locals) || locals > kMaxTransformerExtent) {
      return std::nullopt;
    }
    if (has_type("/layer/2", "sequence")) integer("/layer/2/repeat", rest);
    model.global_every = locals + 1;
    model.blocks = model.blocks * model.global_every + rest;
    global_block = block + "/1/layers";
    block += "/0/layers";
  } else if (has_type("/layer/2", "sequence")) {
    int64_t locals = 0;
    if (!integer("/layer/2/repeat", locals) || locals > kMaxTransformerExtent) return std::nullopt;
    model.blocks += locals;
  }
  const std::string attention = block + "/0/layers";
  model.is_parallel = at(block + "/0/shortcut") != nullptr;
  const std::string mlp = block + (model.is_parallel ? "/0/shortcut/0/layers" : "/1/layers");
  const json* const norm = at(attention + "/0/type");
  const json* const epsilon = at(attention + "/0/epsilon");
  if (norm == nullptr || epsilon == nullptr || !epsilon->is_number()) return std::nullopt;
  model.norm_epsilon = epsilon->get<double>();
  if (*norm == "rms_norm") {
    model.family =
        at("/layer/0/scale") == nullptr ? TransformerFamily::kLlama : TransformerFamily::kGemma;
  } else if (at("/layer/0/position_offset") != nullptr) {
    model.family = TransformerFamily::kOpt;
  } else if (at(attention + "/2/rotary_base") != nullptr) {
    model.family = TransformerFamily::kGptNeoX;
  }
  model.qk_norm = has_type(attention + "/2", "head_norm");
  const std::string heads = attention + (model.qk_norm ? "/3" : "/2");
  model.has_post_norms = at(attention + (model.qk_norm ? "/5" : "/4")) != nullptr;
  if (!integer("/context", model.context) || !integer("/vocabulary", model.vocabulary) ||
      !integer("/layer/0/features", model.width) || !integer(heads + "/heads", model.heads) ||
      !integer(mlp + "/1/outputs", model.hidden)) {
    return std::nullopt;
  }
  model.kv_heads = model.heads;
  if (model.has_gate()) {
    model.hidden /= 2;
    if (!integer(heads + "/kv_heads", model.kv_heads)) return std::nullopt;
    model.qkv_bias =
        model.family == TransformerFamily::kLlama && at(attention + "/1/bias") == nullptr;
    model.has_joined_tensors = at(attention + "/1/parts") != nullptr;
    int64_t of_heads = 0;
    if (!integer(attention + "/1/outputs", of_heads) || !HasHeads(model)) return std::nullopt;
    const int64_t head_size = of_heads / (model.heads + 2 * model.kv_heads);
    if (head_size > kMaxTransformerExtent) return std::nullopt;
    if (head_size * model.heads != model.width) model.head_size = head_size;
  } else if (const json* const activation = at(mlp + "/1/activation")) {
    for (const kernels::Activation known : kernels::kAllActivations) {
      if (*activation == ActivationName(known)) model.activation = known;
    }
  }
  if (model.is_rotary()) {
    const json* const base = at(heads + "/rotary_base");
    if (base == nullptr || !base->is_number()) return std::nullopt;
    model.rotary_base = base->get<double>();
    const std::string global = global_block + (model.qk_norm ? "/3" : "/2");
    // The blocks that come last may have a window that the first have not.
    const std::string local = has_type("/layer/2", "sequence") && model.global_every == 0
                                  ? absl::StrCat("/layer/2/layers", heads.substr(block.size()))
                                  : heads;
    integer(local + "/window", model.window);
    if (local != heads) integer("/layer/1/repeat", model.global_first);
    if (model.family == TransformerFamily::kGemma) {
      ReadGemmaAttention(*at(heads), global_block.empty() ? nullptr : at(global), model);
    }
    const json* const scaling = at((global_block.empty() ? heads : global) + "/rotary_scaling");
    if (scaling != nullptr && !ReadScaling(*scaling, model.rotary_scaling)) return std::nullopt;
    integer(heads + "/rotary_size", model.rotary_size);
  }
  integer("/layer/0/positions", model.positions);
  if (const json* const ends = at("/end_of_text"); ends != nullptr && ends->is_array()) {
    for (const json& id : *ends) {
      if (id.is_number_integer()) model.end_of_text.push_back(id.get<int64_t>());
    }
  }
  if (int64_t begin = 0; integer("/begin_of_text", begin)) model.begin_of_text = begin;
  const std::string head = absl::StrCat("/layer/", document["layer"].size() - 1);
  const json* const tied = at(head + "/tied");
  model.is_tied = tied != nullptr && *tied == true;
  const json* const cap = at(head + "/logit_cap");
  if (cap != nullptr && cap->is_number()) model.logit_cap = cap->get<double>();
  return model;
}

// Returns everything except the initial values.
json WithoutInitialValues(json document) {
  if (document.is_structured()) {
    for (json& element : document) element = WithoutInitialValues(std::move(element));
  }
  if (document.is_object()) {
    for (const char* const key : {"deviation", "token_deviation", "position_deviation"}) {
      document.erase(key);
    }
  }
  return document;
}

}  // namespace

std::string ModelFileOf(const Transformer& model) {
  return absl::StrCat(
      "# ", FamilyName(model.family), ": ", model.blocks, " blocks of width ", model.width,
      ".\ncontext = ", model.context, "\nvocabulary = ", model.vocabulary, TokensText(model),
      "\n\n[[layer]]\ntype = \"embedding\"\nvocabulary = \"classes\"\nfeatures = ", model.width,
      "\npositions = ", PositionsText(model), "\ntoken_deviation = ", Number(kDeviation),
      model.family == TransformerFamily::kGemma
          ? absl::StrCat("\nscale = ", Number(TokenScale(model)))
          : "",
      BlocksText(model), "\n\n[[layer]]\ntype = \"", NormType(model),
      "\"\nepsilon = ", Number(model.norm_epsilon), "\n\n[[layer]]\ntype = \"head\"\n",
      model.is_tied ? "tied = true\n" : "",
      model.logit_cap != 0.0 ? absl::StrCat("logit_cap = ", Number(model.logit_cap), "\n") : "",
      model.quantization.has_value() ? absl::StrCat("\n", QuantizationTableOf(*model.quantization))
                                     : "");
}

absl::StatusOr<Transformer> TransformerOf(absl::string_view model_file) {
  ASSIGN_OR_RETURN(json document, base::ParseToml(model_file));
  document.erase("lora");
  document.erase("tensor");
  ASSIGN_OR_RETURN(const auto quantization, QuantizationOf(model_file));
  document.erase("quantization");
  std::optional<Transformer> model = ExtentsOf(document);
  if (model.has_value() && CheckTransformer(*model).ok()) {
    ASSIGN_OR_RETURN(const json expected, base::ParseToml(ModelFileOf(*model)));
    if (WithoutInitialValues(document) == WithoutInitialValues(expected)) {
      model->quantization = quantization;
      return *model;
    }
  }
  return absl::FailedPreconditionError(
      "the layers are not those of GPT-2, Llama, OPT, GPT-NeoX or Gemma, as a model file for "
      "\"gpt2-124m\", \"llama\", \"opt\", \"gpt_neox\" or \"gemma\" has them");
}

std::string DifferenceOf(const Transformer& a, const Transformer& b) {
  const auto number = [](const Transformer& model, double Transformer::*member) {
    return absl::StrCat(model.*member);
  };
  const auto count = [](int64_t of_a, int64_t of_b, const char* name) {
    return std::array<std::string, 3>{name, absl::StrCat(of_a), absl::StrCat(of_b)};
  };
  const std::array<std::array<std::string, 3>, 20> values = {{
      {"family", FamilyName(a.family), FamilyName(b.family)},
      {"heads", absl::StrCat(a.heads), absl::StrCat(b.heads)},
      {"kv_heads", absl::StrCat(a.kv_heads), absl::StrCat(b.kv_heads)},
      {"rotary_base", number(a, &Transformer::rotary_base), number(b, &Transformer::rotary_base)},
      {"norm_epsilon", number(a, &Transformer::norm_epsilon),
       number(b, &Transformer::norm_epsilon)},
      {"rotary_scaling", ScalingText(a), ScalingText(b)},
      {"qkv_bias", a.qkv_bias ? "1" : "0", b.qkv_bias ? "1" : "0"},
      {"qk_norm", a.qk_norm ? "1" : "0", b.qk_norm ? "1" : "0"},
      {"activation", ActivationName(a.activation), ActivationName(b.activation)},
      {"rotary_size", absl::StrCat(a.rotary_size), absl::StrCat(b.rotary_size)},
      {"parallel", a.is_parallel ? "1" : "0", b.is_parallel ? "1" : "0"},
      {"tied", a.is_tied ? "1" : "0", b.is_tied ? "1" : "0"},
      count(a.has_post_norms, b.has_post_norms, "post_norms"),
      count(a.window, b.window, "window"),
      count(a.global_first, b.global_first, "global_first"),
      count(a.global_every, b.global_every, "global_every"),
      {"local_rotary_base", number(a, &Transformer::local_rotary_base),
       number(b, &Transformer::local_rotary_base)},
      count(a.query_scalar, b.query_scalar, "query_scalar"),
      {"score_cap", number(a, &Transformer::score_cap), number(b, &Transformer::score_cap)},
      {"logit_cap", number(a, &Transformer::logit_cap), number(b, &Transformer::logit_cap)},
  }};
  for (const auto& [name, of_a, of_b] : values) {
    if (of_a != of_b) return absl::StrCat(name, " ", of_a, " and ", of_b);
  }
  return "";
}

}  // namespace stagecoach::engine
