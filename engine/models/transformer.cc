#include "engine/models/transformer.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/toml.h"
#include "engine/models/model_file.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;

constexpr double kDeviation = 0.02;

struct NamedModel {
  const char* name;
  Transformer model;
};

Transformer Gpt2(int64_t blocks, int64_t width, int64_t heads) {
  return {.blocks = blocks, .width = width, .heads = heads, .kv_heads = heads, .hidden = 4 * width};
}

Transformer Llama() {
  return {.family = TransformerFamily::kLlama,
          .kv_heads = 4,
          .hidden = 2048,
          .vocabulary = 32000,
          .rotary_base = 10000.0,
          .is_tied = false};
}

// Both have heads of 128 numbers, or of 64 if they are small.
Transformer Llama3(int64_t blocks, int64_t width, int64_t head_size, int64_t hidden) {
  return {.family = TransformerFamily::kLlama,
          .blocks = blocks,
          .width = width,
          .heads = width / head_size,
          .kv_heads = 8,
          .hidden = hidden,
          .context = 8192,
          .vocabulary = 128256,
          .rotary_base = 500000.0,
          .is_tied = false,
          .end_of_text = {128001},
          .begin_of_text = 128000};
}

// Llama 3.2 was trained further on longer texts.
Transformer Llama32(int64_t blocks, int64_t width, int64_t head_size, int64_t hidden) {
  Transformer model = Llama3(blocks, width, head_size, hidden);
  model.context = 131072;
  model.rotary_scaling = {.factor = 32.0, .original_positions = 8192};
  model.is_tied = true;
  return model;
}

Transformer Qwen2(int64_t blocks, int64_t width, int64_t heads, int64_t kv_heads, int64_t hidden) {
  // The larger ones have a head of their own, and a vocabulary padded for it.
  const bool is_large = width > 2048;
  return {.family = TransformerFamily::kLlama,
          .blocks = blocks,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .hidden = hidden,
          .context = 32768,
          .vocabulary = is_large ? 152064 : 151936,
          .norm_epsilon = 1e-6,
          .rotary_base = 1000000.0,
          .qkv_bias = true,
          .is_tied = !is_large,
          .end_of_text = {151643},
          .begin_of_text = 151643};
}

Transformer Qwen3(int64_t blocks, int64_t width, int64_t heads, int64_t hidden, bool is_tied) {
  return {.family = TransformerFamily::kLlama,
          .blocks = blocks,
          .width = width,
          .heads = heads,
          .kv_heads = 8,
          .head_size = heads * 128 == width ? 0 : 128,
          .hidden = hidden,
          .context = 40960,
          .vocabulary = 151936,
          .norm_epsilon = 1e-6,
          .rotary_base = 1000000.0,
          .qk_norm = true,
          .is_tied = is_tied,
          .end_of_text = {151645},
          .begin_of_text = 151643};
}

std::vector<NamedModel> PublishedModels() {
  return {{"gpt2-124m", Gpt2(12, 768, 12)},
          {"gpt2-355m", Gpt2(24, 1024, 16)},
          {"gpt2-774m", Gpt2(36, 1280, 20)},
          {"gpt2-1558m", Gpt2(48, 1600, 25)},
          {"llama3.2-1b", Llama32(16, 2048, 64, 8192)},
          {"llama3.2-3b", Llama32(28, 3072, 128, 8192)},
          {"llama3-8b", Llama3(32, 4096, 128, 14336)},
          {"qwen2.5-0.5b", Qwen2(24, 896, 14, 2, 4864)},
          {"qwen2.5-1.5b", Qwen2(28, 1536, 12, 2, 8960)},
          {"qwen2.5-7b", Qwen2(28, 3584, 28, 4, 18944)},
          {"qwen3-0.6b", Qwen3(28, 1024, 16, 3072, true)},
          {"qwen3-8b", Qwen3(36, 4096, 32, 12288, false)}};
}

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
  const kernels::RotaryScaling& scaling = model.rotary_scaling;
  if (scaling == kernels::RotaryScaling()) return "";
  std::string text = absl::StrCat(", rotary_scaling = { factor = ", Number(scaling.factor));
  if (scaling.original_positions > 0) {
    absl::StrAppend(&text, ", original_context = ", scaling.original_positions,
                    ", low_turns = ", Number(scaling.low_turns),
                    ", high_turns = ", Number(scaling.high_turns));
  }
  return text + " }";
}

std::string BlockText(const Transformer& model) {
  const bool is_gpt2 = model.family == TransformerFamily::kGpt2;
  const int64_t head_size = model.size_of_head();
  const std::string norm = absl::StrCat("      { type = \"", is_gpt2 ? "layer_norm" : "rms_norm",
                                        "\", epsilon = ", Number(model.norm_epsilon), " }");
  const char* const bias = is_gpt2 ? "" : ", bias = false";
  std::string attention = absl::StrCat("      { type = \"attention\", heads = ", model.heads);
  if (!is_gpt2) {
    absl::StrAppend(&attention, ", kv_heads = ", model.kv_heads,
                    ", rotary_base = ", Number(model.rotary_base), ScalingText(model));
  }
  const auto residual = [](const std::vector<std::string>& layers) {
    return absl::StrCat("  { type = \"residual\", layers = [\n", absl::StrJoin(layers, ",\n"),
                        " ] }");
  };
  const double last = SummedDeviation(model);
  std::vector<std::string> first_layers = {
      norm, LinearLine((model.heads + 2 * model.kv_heads) * head_size, kDeviation,
                       model.qkv_bias ? "" : bias)};
  if (model.qk_norm) {
    first_layers.push_back(absl::StrCat("      { type = \"head_norm\", heads = ", model.heads,
                                        ", kv_heads = ", model.kv_heads,
                                        ", epsilon = ", Number(model.norm_epsilon), " }"));
  }
  first_layers.insert(first_layers.end(), {attention + " }", LinearLine(model.width, last, bias)});
  const std::string first_half = residual(first_layers);
  const std::string second_half =
      is_gpt2 ? residual({norm, LinearLine(model.hidden, kDeviation, ", activation = \"gelu\""),
                          LinearLine(model.width, last, "")})
              : residual({norm, LinearLine(2 * model.hidden, kDeviation, bias),
                          "      { type = \"swiglu\" }", LinearLine(model.width, last, bias)});
  return absl::StrCat(first_half, ",\n", second_half, ",\n");
}

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
  if (model.family != TransformerFamily::kGpt2) return "false";
  return model.positions == 0 ? "true" : absl::StrCat(model.positions);
}

absl::Status CheckExtents(const Transformer& model) {
  const std::pair<const char*, int64_t> extents[] = {
      {"blocks", model.blocks},        {"width", model.width},     {"heads", model.heads},
      {"hidden", model.hidden},        {"context", model.context}, {"kv_heads", model.kv_heads},
      {"vocabulary", model.vocabulary}};
  for (const auto& [name, extent] : extents) {
    if (extent >= 1 && extent <= kMaxTransformerExtent) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", extent, ", expected 1 to ", kMaxTransformerExtent));
  }
  return absl::OkStatus();
}

bool ReadScaling(const json& document, kernels::RotaryScaling& scaling) {
  const auto number = [&](const char* key, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    if (!document.contains(key)) return true;
    const json& found = document[key];
    if (std::is_integral_v<Value> ? !found.is_number_integer() : !found.is_number()) return false;
    value = found.get<Value>();
    return true;
  };
  return document.is_object() && number("factor", scaling.factor) &&
         number("original_context", scaling.original_positions) &&
         number("low_turns", scaling.low_turns) && number("high_turns", scaling.high_turns);
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
  const std::string attention = "/layer/1/layers/0/layers", mlp = "/layer/1/layers/1/layers";
  Transformer model;
  const json* const norm = at(attention + "/0/type");
  const json* const epsilon = at(attention + "/0/epsilon");
  if (norm == nullptr || epsilon == nullptr || !epsilon->is_number()) return std::nullopt;
  model.norm_epsilon = epsilon->get<double>();
  if (*norm == "rms_norm") model.family = TransformerFamily::kLlama;
  const bool is_gpt2 = model.family == TransformerFamily::kGpt2;
  model.qk_norm = at(attention + "/2/type") != nullptr && *at(attention + "/2/type") == "head_norm";
  const std::string heads = attention + (model.qk_norm ? "/3" : "/2");
  if (!integer("/context", model.context) || !integer("/vocabulary", model.vocabulary) ||
      !integer("/layer/1/repeat", model.blocks) || !integer("/layer/0/features", model.width) ||
      !integer(heads + "/heads", model.heads) || !integer(mlp + "/1/outputs", model.hidden)) {
    return std::nullopt;
  }
  model.kv_heads = model.heads;
  if (!is_gpt2) {
    model.hidden /= 2;
    const json* const base = at(heads + "/rotary_base");
    if (base == nullptr || !base->is_number()) return std::nullopt;
    model.rotary_base = base->get<double>();
    if (!integer(heads + "/kv_heads", model.kv_heads)) return std::nullopt;
    model.qkv_bias = at(attention + "/1/bias") == nullptr;
    int64_t of_heads = 0;
    if (!integer(attention + "/1/outputs", of_heads) || !CheckExtents(model).ok()) {
      return std::nullopt;
    }
    const int64_t head_size = of_heads / (model.heads + 2 * model.kv_heads);
    if (head_size > kMaxTransformerExtent) return std::nullopt;
    if (head_size * model.heads != model.width) model.head_size = head_size;
    if (const json* const scaling = at(heads + "/rotary_scaling")) {
      if (!ReadScaling(*scaling, model.rotary_scaling)) return std::nullopt;
    }
  }
  integer("/layer/0/positions", model.positions);
  if (const json* const ends = at("/end_of_text"); ends != nullptr && ends->is_array()) {
    for (const json& id : *ends) {
      if (id.is_number_integer()) model.end_of_text.push_back(id.get<int64_t>());
    }
  }
  if (int64_t begin = 0; integer("/begin_of_text", begin)) model.begin_of_text = begin;
  const json* const tied = at("/layer/3/tied");
  model.is_tied = tied != nullptr && *tied == true;
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

absl::Status SetOption(absl::string_view key, absl::string_view text, Transformer& model) {
  const std::pair<const char*, int64_t*> counts[] = {
      {"blocks", &model.blocks}, {"width", &model.width},     {"heads", &model.heads},
      {"hidden", &model.hidden}, {"context", &model.context}, {"vocabulary", &model.vocabulary}};
  const bool is_llama = model.family == TransformerFamily::kLlama;
  const auto wrong = [&](const char* expected) {
    return absl::InvalidArgumentError(absl::StrCat(key, "=", text, ": expected ", expected));
  };
  for (const auto& [name, value] : counts) {
    if (key == name) return absl::SimpleAtoi(text, value) ? absl::OkStatus() : wrong("a number");
  }
  if (key == "kv_heads" && is_llama) {
    return absl::SimpleAtoi(text, &model.kv_heads) ? absl::OkStatus() : wrong("a number");
  }
  if (key == "head_size" && is_llama) {
    return absl::SimpleAtoi(text, &model.head_size) ? absl::OkStatus() : wrong("a number");
  }
  for (const auto& [name, value] :
       {std::pair("tied", &model.is_tied), std::pair("qkv_bias", &model.qkv_bias),
        std::pair("qk_norm", &model.qk_norm)}) {
    if (key != name || (!is_llama && value != &model.is_tied)) continue;
    return absl::SimpleAtob(text, value) ? absl::OkStatus() : wrong("0 or 1");
  }
  for (const auto& [name, value] : {std::pair("norm_epsilon", &model.norm_epsilon),
                                    std::pair("rotary_base", &model.rotary_base)}) {
    if (key != name || (!is_llama && value == &model.rotary_base)) continue;
    return absl::SimpleAtod(text, value) ? absl::OkStatus() : wrong("a number");
  }
  std::vector<std::string> known = {"tied", "norm_epsilon"};
  for (const auto& [name, value] : counts) known.emplace_back(name);
  if (is_llama)
    known.insert(known.end(), {"kv_heads", "head_size", "rotary_base", "qkv_bias", "qk_norm"});
  const std::string nearest = base::Nearest(std::string(key), known);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is not known, expected one of ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

// Parses "blocks=4,width=128". Values that follow from others do so unless they are set.
absl::StatusOr<Transformer> WithOptions(Transformer model, absl::string_view options) {
  bool has_hidden = false, has_kv_heads = false;
  for (const absl::string_view option : absl::StrSplit(options, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(option, absl::MaxSplits('=', 1));
    RETURN_IF_ERROR(SetOption(parts.first, parts.second, model));
    has_hidden |= parts.first == "hidden";
    has_kv_heads |= parts.first == "kv_heads";
  }
  RETURN_IF_ERROR(CheckExtents(model));
  const bool is_gpt2 = model.family == TransformerFamily::kGpt2;
  if (!has_hidden && is_gpt2) model.hidden = 4 * model.width;
  if (!has_hidden && !is_gpt2) model.hidden = (8 * model.width / 3 + 31) / 32 * 32;
  if (!has_kv_heads && model.heads % model.kv_heads != 0) model.kv_heads = model.heads;
  if (is_gpt2) model.kv_heads = model.heads;
  RETURN_IF_ERROR(CheckTransformer(model));
  return model;
}

}  // namespace

absl::Status CheckTransformer(const Transformer& model) {
  RETURN_IF_ERROR(CheckExtents(model));
  if (model.head_size < 0 || model.head_size > kMaxTransformerExtent) {
    return absl::InvalidArgumentError(absl::StrCat("head_size is ", model.head_size,
                                                   ", expected 1 to ", kMaxTransformerExtent,
                                                   ", or 0 for width / heads"));
  }
  if (model.head_size == 0 && model.width % model.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the width ", model.width, " is not a multiple of the ", model.heads, " heads"));
  }
  const bool is_gpt2 = model.family == TransformerFamily::kGpt2;
  if (model.heads % model.kv_heads != 0 || (is_gpt2 && model.kv_heads != model.heads)) {
    return absl::InvalidArgumentError(absl::StrCat(model.heads, " heads cannot share ",
                                                   model.kv_heads, " keys and values",
                                                   is_gpt2 ? ": in GPT-2 each has its own" : ""));
  }
  if (model.positions != 0 &&
      (!is_gpt2 || model.positions < model.context || model.positions > kMaxTransformerExtent)) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions is ", model.positions, ", expected ",
                     is_gpt2 ? absl::StrCat("at least the context, ", model.context)
                             : "0: Llama has no table of them"));
  }
  if (is_gpt2 && (model.head_size != 0 || model.qkv_bias || model.qk_norm ||
                  model.rotary_scaling != kernels::RotaryScaling())) {
    return absl::InvalidArgumentError(
        "head_size, qkv_bias, qk_norm and the scaling of rotary positions are options of "
        "Llama, not of GPT-2");
  }
  if (!IsRotaryScaling(model.rotary_scaling)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary positions cannot be scaled by ", model.rotary_scaling.factor));
  }
  if (!(model.norm_epsilon > 0.0 && model.norm_epsilon < 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("norm_epsilon is ", model.norm_epsilon, ", expected one in (0, 1)"));
  }
  if (is_gpt2 ? model.rotary_base != 0.0 : !(model.rotary_base >= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat("rotary_base is ", model.rotary_base,
                                                   ", expected ",
                                                   is_gpt2 ? "0: GPT-2 has none" : "at least 1"));
  }
  return absl::OkStatus();
}

std::string DifferenceOf(const Transformer& a, const Transformer& b) {
  const auto number = [](const Transformer& model, double Transformer::*member) {
    return absl::StrCat(model.*member);
  };
  const auto family = [](const Transformer& model) {
    return model.family == TransformerFamily::kGpt2 ? "GPT-2" : "Llama";
  };
  const std::array<std::array<std::string, 3>, 9> values = {{
      {"family", family(a), family(b)},
      {"heads", absl::StrCat(a.heads), absl::StrCat(b.heads)},
      {"kv_heads", absl::StrCat(a.kv_heads), absl::StrCat(b.kv_heads)},
      {"rotary_base", number(a, &Transformer::rotary_base), number(b, &Transformer::rotary_base)},
      {"norm_epsilon", number(a, &Transformer::norm_epsilon),
       number(b, &Transformer::norm_epsilon)},
      {"rotary_scaling", ScalingText(a), ScalingText(b)},
      {"qkv_bias", a.qkv_bias ? "1" : "0", b.qkv_bias ? "1" : "0"},
      {"qk_norm", a.qk_norm ? "1" : "0", b.qk_norm ? "1" : "0"},
      {"tied", a.is_tied ? "1" : "0", b.is_tied ? "1" : "0"},
  }};
  for (const auto& [name, of_a, of_b] : values) {
    if (of_a != of_b) return absl::StrCat(name, " ", of_a, " and ", of_b);
  }
  return "";
}

std::string ModelFileOf(const Transformer& model) {
  const bool is_gpt2 = model.family == TransformerFamily::kGpt2;
  return absl::StrCat(
      "# ", is_gpt2 ? "GPT-2" : "Llama", ": ", model.blocks, " blocks of width ", model.width,
      ".\ncontext = ", model.context, "\nvocabulary = ", model.vocabulary, TokensText(model),
      "\n\n[[layer]]\ntype = \"embedding\"\nvocabulary = \"classes\"\nfeatures = ", model.width,
      "\npositions = ", PositionsText(model), "\ntoken_deviation = ", Number(kDeviation),
      "\n\n[[layer]]\ntype = \"sequence\"\nrepeat = ", model.blocks, "\nlayers = [\n",
      BlockText(model), "]\n\n[[layer]]\ntype = \"", is_gpt2 ? "layer_norm" : "rms_norm",
      "\"\nepsilon = ", Number(model.norm_epsilon), "\n\n[[layer]]\ntype = \"head\"\n",
      model.is_tied ? "tied = true\n" : "",
      model.quantization.has_value() ? absl::StrCat("\n", QuantizationTableOf(*model.quantization))
                                     : "");
}

absl::StatusOr<Transformer> TransformerOf(absl::string_view model_file) {
  ASSIGN_OR_RETURN(json document, base::ParseToml(model_file));
  document.erase("lora");
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
      "the layers are not those of GPT-2 or Llama, as a model file for \"gpt2-124m\" or \"llama\" "
      "has them");
}

std::vector<std::string> TransformerNames() {
  std::vector<std::string> names;
  for (const NamedModel& named : PublishedModels()) names.emplace_back(named.name);
  names.insert(names.end(), {"gpt2", "llama"});
  return names;
}

absl::StatusOr<Transformer> NamedTransformer(absl::string_view name) {
  for (const NamedModel& named : PublishedModels()) {
    if (name == named.name) return named.model;
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits(':', 1));
  for (const auto& [family, base] :
       {std::pair("gpt2", Gpt2(12, 768, 12)), std::pair("llama", Llama())}) {
    if (parts.first != family) continue;
    absl::StatusOr<Transformer> model = WithOptions(base, parts.second);
    if (!model.ok()) return base::Annotate(model.status(), name);
    return model;
  }
  return absl::NotFoundError(absl::StrCat("\"", name, "\" is not the name of a transformer"));
}

}  // namespace stagecoach::engine
