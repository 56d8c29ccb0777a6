// NamedTransformer, TransformerNames.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"
#include "engine/models/transformer.h"

namespace stagecoach::engine {
namespace {

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

Transformer Opt(int64_t blocks, int64_t width, int64_t heads) {
  return {.family = TransformerFamily::kOpt,
          .blocks = blocks,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .hidden = 4 * width,
          .activation = kernels::Activation::kRelu,
          .context = 2048,
          .vocabulary = 50272,
          .end_of_text = {2},
          .begin_of_text = 2};
}

// A quarter of each head is rotated.
Transformer Pythia(int64_t blocks, int64_t width, int64_t heads, int64_t vocabulary) {
  return {.family = TransformerFamily::kGptNeoX,
          .blocks = blocks,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .hidden = 4 * width,
          .activation = kernels::Activation::kGeluExact,
          .context = 2048,
          .vocabulary = vocabulary,
          .rotary_base = 10000.0,
          .rotary_size = width / heads / 4,
          .is_parallel = true,
          .is_tied = false,
          .end_of_text = {0},
          .begin_of_text = 0};
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

// Every other block has a window.
Transformer Gemma2(int64_t blocks, int64_t width, int64_t heads, int64_t hidden) {
  return {.family = TransformerFamily::kGemma,
          .blocks = blocks,
          .width = width,
          .heads = heads,
          .kv_heads = heads / 2,
          .head_size = 256,
          .hidden = hidden,
          .context = 8192,
          .vocabulary = 256000,
          .norm_epsilon = 1e-6,
          .rotary_base = 10000.0,
          .has_post_norms = true,
          .window = 4096,
          .global_every = 2,
          .score_cap = 50.0,
          .logit_cap = 30.0,
          .end_of_text = {1},
          .begin_of_text = 2};
}

// The small ones, of text alone.
Transformer Gemma3(int64_t blocks, int64_t width, int64_t hidden) {
  return {.family = TransformerFamily::kGemma,
          .blocks = blocks,
          .width = width,
          .heads = 4,
          .kv_heads = 1,
          .head_size = 256,
          .hidden = hidden,
          .context = 32768,
          .vocabulary = 262144,
          .norm_epsilon = 1e-6,
          .rotary_base = 1000000.0,
          .qk_norm = true,
          .has_post_norms = true,
          .window = 512,
          .global_every = 6,
          .local_rotary_base = 10000.0,
          .end_of_text = {1},
          .begin_of_text = 2};
}

Transformer Gemma() {
  Transformer model = Gemma3(12, 640, 2560);
  model.context = 1024;
  return model;
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
          {"llama3-70b", Llama3(80, 8192, 128, 28672)},
          {"qwen2.5-0.5b", Qwen2(24, 896, 14, 2, 4864)},
          {"qwen2.5-1.5b", Qwen2(28, 1536, 12, 2, 8960)},
          {"qwen2.5-7b", Qwen2(28, 3584, 28, 4, 18944)},
          {"qwen3-0.6b", Qwen3(28, 1024, 16, 3072, true)},
          {"qwen3-8b", Qwen3(36, 4096, 32, 12288, false)},
          {"opt-125m", Opt(12, 768, 12)},
          {"opt-1.3b", Opt(24, 2048, 32)},
          {"opt-6.7b", Opt(32, 4096, 32)},
          {"pythia-160m", Pythia(12, 768, 12, 50304)},
          {"pythia-1.4b", Pythia(24, 2048, 16, 50304)},
          {"pythia-6.9b", Pythia(32, 4096, 32, 50432)},
          {"gemma2-2b", Gemma2(26, 2304, 8, 9216)},
          {"gemma2-9b", Gemma2(42, 3584, 16, 14336)},
          {"gemma3-270m", Gemma3(18, 640, 2048)},
          {"gemma3-1b", Gemma3(26, 1152, 6912)}};
}

// An option of a name, and what it sets: one of these.
struct Option {
  const char* name;
  int64_t* count = nullptr;
  double* number = nullptr;
  bool* has = nullptr;
};

std::vector<Option> OptionsOf(Transformer& model) {
  std::vector<Option> options = {{.name = "blocks", .count = &model.blocks},
                                 {.name = "width", .count = &model.width},
                                 {.name = "heads", .count = &model.heads},
                                 {.name = "hidden", .count = &model.hidden},
                                 {.name = "context", .count = &model.context},
                                 {.name = "vocabulary", .count = &model.vocabulary},
                                 {.name = "norm_epsilon", .number = &model.norm_epsilon},
                                 {.name = "tied", .has = &model.is_tied}};
  if (model.is_rotary()) options.push_back({.name = "rotary_base", .number = &model.rotary_base});
  const auto add = [&options](std::initializer_list<Option> more) {
    for (const Option& option : more) options.push_back(option);
  };
  if (model.has_gate()) {
    add({{.name = "kv_heads", .count = &model.kv_heads},
         {.name = "head_size", .count = &model.head_size},
         {.name = "window", .count = &model.window},
         {.name = "qk_norm", .has = &model.qk_norm}});
  }
  if (model.family == TransformerFamily::kLlama) {
    add({{.name = "qkv_bias", .has = &model.qkv_bias},
         {.name = "global_first", .count = &model.global_first}});
  }
  if (model.family == TransformerFamily::kGemma) {
    add({{.name = "post_norms", .has = &model.has_post_norms},
         {.name = "global_every", .count = &model.global_every},
         {.name = "local_rotary_base", .number = &model.local_rotary_base},
         {.name = "query_scalar", .count = &model.query_scalar},
         {.name = "score_cap", .number = &model.score_cap},
         {.name = "logit_cap", .number = &model.logit_cap}});
  }
  if (model.family == TransformerFamily::kGptNeoX) {
    add({{.name = "rotary_size", .count = &model.rotary_size},
         {.name = "parallel", .has = &model.is_parallel}});
  }
  return options;
}

absl::Status SetOption(absl::string_view key, absl::string_view text, Transformer& model) {
  const auto wrong = [&](const char* expected) {
    return absl::InvalidArgumentError(absl::StrCat(key, "=", text, ": expected ", expected));
  };
  std::vector<std::string> known;
  for (const auto& [name, count, number, has] : OptionsOf(model)) {
    known.emplace_back(name);
    if (key != name) continue;
    if (count != nullptr && !absl::SimpleAtoi(text, count)) return wrong("a number");
    if (number != nullptr && !absl::SimpleAtod(text, number)) return wrong("a number");
    if (has != nullptr && !absl::SimpleAtob(text, has)) return wrong("0 or 1");
    return absl::OkStatus();
  }
  const std::string nearest = base::Nearest(std::string(key), known);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is not known, expected one of ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

// Leaves out of a Gemma what it cannot have with the options given, unless that is given too.
void LeaveOut(const std::set<std::string, std::less<>>& given, Transformer& model) {
  if (!given.contains("window") && (!model.has_post_norms || model.blocks < 2)) model.window = 0;
  if (!given.contains("global_every")) {
    const bool has_both = model.window != 0 && model.blocks > 1;
    model.global_every = has_both ? std::min(model.global_every, model.blocks) : 0;
  }
  const bool has_local = model.qk_norm && model.global_every != 0;
  if (!given.contains("local_rotary_base") && !has_local) model.local_rotary_base = 0.0;
}

// Parses "blocks=4,width=128". Values that follow from others do so unless they are set.
absl::StatusOr<Transformer> WithOptions(Transformer model, absl::string_view options) {
  std::set<std::string, std::less<>> given;
  for (const absl::string_view option : absl::StrSplit(options, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(option, absl::MaxSplits('=', 1));
    RETURN_IF_ERROR(SetOption(parts.first, parts.second, model));
    given.emplace(parts.first);
  }
  // What the widths say is only computed with if they are in range.
  const bool is_count = model.width >= 1 && model.width <= kMaxTransformerExtent;
  const bool is_llama = model.family == TransformerFamily::kLlama;
  if (!given.contains("hidden") && is_count) {
    model.hidden = is_llama ? (8 * model.width / 3 + 31) / 32 * 32 : 4 * model.width;
  }
  const bool fits = model.kv_heads >= 1 && model.heads % model.kv_heads == 0;
  if (!model.has_gate() || (!given.contains("kv_heads") && !fits)) model.kv_heads = model.heads;
  if (model.family == TransformerFamily::kGptNeoX && !given.contains("rotary_size") &&
      model.heads >= 1) {
    model.rotary_size = std::max<int64_t>(model.width / model.heads / 8 * 2, 0);
  }
  if (model.family == TransformerFamily::kGemma) LeaveOut(given, model);
  RETURN_IF_ERROR(CheckTransformer(model));
  return model;
}

}  // namespace

std::vector<std::string> TransformerNames() {
  std::vector<std::string> names;
  for (const NamedModel& named : PublishedModels()) names.emplace_back(named.name);
  names.insert(names.end(), {"gpt2", "llama", "opt", "gpt_neox", "gemma"});
  return names;
}

absl::StatusOr<Transformer> NamedTransformer(absl::string_view name) {
  for (const NamedModel& named : PublishedModels()) {
    if (name == named.name) return named.model;
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits(':', 1));
  for (const auto& [family, base] :
       {std::pair("gpt2", Gpt2(12, 768, 12)), std::pair("llama", Llama()),
        std::pair("opt", Opt(12, 768, 12)), std::pair("gpt_neox", Pythia(12, 768, 12, 50304)),
        std::pair("gemma", Gemma())}) {
    if (parts.first != family) continue;
    absl::StatusOr<Transformer> model = WithOptions(base, parts.second);
    if (!model.ok()) return base::Annotate(model.status(), name);
    return model;
  }
  return absl::NotFoundError(absl::StrCat("\"", name, "\" is not the name of a transformer"));
}

}  // namespace stagecoach::engine
