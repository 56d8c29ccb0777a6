#include "engine/models/transformer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

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

// Checks which blocks have a window.
absl::Status CheckWindow(const Transformer& model) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  if (!model.has_gate() && (model.window != 0 || model.global_first != 0)) {
    return refuse("window and global_first are options of Llama and Gemma, not of ",
                  FamilyName(model.family));
  }
  if (model.window < 0 || model.window > kMaxTransformerExtent) {
    return refuse("window is ", model.window, ", expected 0 to ", kMaxTransformerExtent);
  }
  if (model.global_first != 0 &&
      (model.window == 0 || model.global_first < 0 || model.global_first >= model.blocks)) {
    return refuse("global_first is ", model.global_first, ", expected less than the ", model.blocks,
                  " blocks, of which the others have a window, or 0");
  }
  // transformers has Mistral and Phi 3, whose windows all blocks have, and Qwen 2 and 3.
  if (model.global_first != 0 &&
      (model.family != TransformerFamily::kLlama || !(model.qkv_bias || model.qk_norm))) {
    return refuse(
        "global_first is an option of a Llama with qkv_bias or qk_norm, as Qwen 2 and 3 ",
        "have: in others all blocks have the window",
        model.family == TransformerFamily::kGemma ? ", but every N-th (global_every)" : "");
  }
  if (model.window != 0 && model.qkv_bias && model.qk_norm) {
    return refuse("there is no model with a window, qkv_bias and qk_norm");
  }
  return absl::OkStatus();
}

// Checks what Gemma has, and others do not.
absl::Status CheckGemma(const Transformer& model) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  const bool has_layers =
      model.query_scalar != 0 || model.score_cap != 0.0 || model.logit_cap != 0.0;
  const bool has_rest = model.global_every != 0 || model.local_rotary_base != 0.0;
  if (model.family != TransformerFamily::kGemma) {
    if (!model.has_post_norms && !has_layers && !has_rest) return absl::OkStatus();
    return refuse("post_norms, global_every, local_rotary_base, query_scalar, score_cap and ",
                  "logit_cap are options of Gemma, not of ", FamilyName(model.family));
  }
  // transformers has Gemma 1, 2 and 3, and nothing in between.
  if (!model.has_post_norms && (has_layers || model.qk_norm || model.window != 0)) {
    return refuse("qk_norm, window, query_scalar, score_cap and logit_cap are options of Gemma 2 ",
                  "and 3, which have post_norms");
  }
  if (model.score_cap != 0.0 && model.qk_norm) {
    return refuse("score_cap is an option of Gemma 2, which has no qk_norm");
  }
  if (model.local_rotary_base != 0.0 && !(model.qk_norm && model.global_every != 0)) {
    return refuse("local_rotary_base is an option of Gemma 3, which has qk_norm, with a window in ",
                  "some blocks, but not in all");
  }
  if (model.qk_norm && model.window != 0 && model.local_rotary_base == 0.0 &&
      !model.rotary_scaling.is_none()) {
    return refuse("positions are scaled in blocks with a window, which Gemma 3 does not do: ",
                  "give their local_rotary_base");
  }
  if (model.local_rotary_base != 0.0 && !(model.local_rotary_base >= 1.0)) {
    return refuse("local_rotary_base is ", model.local_rotary_base, ", expected at least 1, or 0");
  }
  if (model.query_scalar < 0 || model.query_scalar > kMaxTransformerExtent) {
    return refuse("query_scalar is ", model.query_scalar, ", expected 0 to ",
                  kMaxTransformerExtent);
  }
  if (model.global_every != 0 &&
      (model.window == 0 || model.global_every < 2 || model.global_every > model.blocks)) {
    return refuse("global_every is ", model.global_every, ", expected 2 to the ", model.blocks,
                  " blocks with a window, or 0");
  }
  for (const auto& [name, cap] :
       {std::pair("score_cap", model.score_cap), std::pair("logit_cap", model.logit_cap)}) {
    if (cap == 0.0 || (cap >= 1e-3 && cap <= 1e6)) continue;
    return refuse(name, " is ", cap, ", expected 0.001 to 1e6, or 0 for none");
  }
  return absl::OkStatus();
}

// Checks what only some families have.
absl::Status CheckOptions(const Transformer& model) {
  const char* const name = FamilyName(model.family);
  const bool is_llama = model.family == TransformerFamily::kLlama;
  if (!model.has_gate() && (model.head_size != 0 || model.qkv_bias || model.qk_norm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_size, qkv_bias and qk_norm are options of Llama, not of ", name));
  }
  if (!is_llama && model.qkv_bias) {
    return absl::InvalidArgumentError(
        absl::StrCat("qkv_bias is an option of Llama, not of ", name));
  }
  RETURN_IF_ERROR(CheckWindow(model));
  RETURN_IF_ERROR(CheckGemma(model));
  const bool is_neox = model.family == TransformerFamily::kGptNeoX;
  const bool may_rotate_parts = is_neox || model.has_joined_tensors;  // Phi 4 mini does
  if ((model.rotary_size != 0 && !may_rotate_parts) || (model.is_parallel && !is_neox)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary_size and parallel are options of GPT-NeoX, not of ", name));
  }
  if (model.rotary_size % 2 != 0 || model.rotary_size < 0 ||
      (model.rotary_size != 0 && model.rotary_size >= model.size_of_head())) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary_size is ", model.rotary_size, ", expected an even number below the ",
                     model.size_of_head(), " of a head, or 0 for all"));
  }
  if (!model.is_rotary() && !model.rotary_scaling.is_none()) {
    return absl::InvalidArgumentError(
        absl::StrCat("scaled rotary positions are options of Llama, not of ", name));
  }
  if ((model.has_gate() || model.family == TransformerFamily::kGpt2) &&
      model.activation != kernels::Activation::kGelu) {
    return absl::InvalidArgumentError(
        absl::StrCat("the activation is ", ActivationName(model.activation), ", and that of ", name,
                     is_llama           ? " is SwiGLU"
                     : model.has_gate() ? " is GeGLU"
                                        : " is gelu"));
  }
  // transformers has no key for it.
  if (model.family == TransformerFamily::kOpt && model.norm_epsilon != 1e-5) {
    return absl::InvalidArgumentError(
        absl::StrCat("norm_epsilon is ", model.norm_epsilon, ", and that of OPT is 1e-5"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* FamilyName(TransformerFamily family) {
  switch (family) {
    case TransformerFamily::kGpt2:
      return "GPT-2";
    case TransformerFamily::kLlama:
      return "Llama";
    case TransformerFamily::kOpt:
      return "OPT";
    case TransformerFamily::kGptNeoX:
      return "GPT-NeoX";
    case TransformerFamily::kGemma:
      return "Gemma";
  }
  return "";
}

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
  const char* const name = FamilyName(model.family);
  const bool may_share = model.has_gate();
  if (model.heads % model.kv_heads != 0 || (!may_share && model.kv_heads != model.heads)) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.heads, " heads cannot share ", model.kv_heads, " keys and values",
                     may_share ? "" : absl::StrCat(": in ", name, " each has its own")));
  }
  if (model.positions != 0 && (model.is_rotary() || model.positions < model.context ||
                               model.positions > kMaxTransformerExtent)) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions is ", model.positions, ", expected ",
                     model.is_rotary() ? absl::StrCat("0: ", name, " has no table of them")
                                       : absl::StrCat("at least the context, ", model.context)));
  }
  RETURN_IF_ERROR(CheckOptions(model));
  RETURN_IF_ERROR(CheckRotaryScaling(model.rotary_scaling));
  const bool has_divisors = model.rotary_scaling.kind == RotaryKind::kLongRope;
  const auto divisors = static_cast<int64_t>(model.rotary_scaling.short_divisors.size());
  if (has_divisors && divisors != model.rotated_numbers() / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary positions have ", divisors, " divisors, expected one for each of the ",
                     model.rotated_numbers() / 2, " pairs of a head"));
  }
  if (!(model.norm_epsilon > 0.0 && model.norm_epsilon < 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("norm_epsilon is ", model.norm_epsilon, ", expected one in (0, 1)"));
  }
  if (model.is_rotary() ? !(model.rotary_base >= 1.0) : model.rotary_base != 0.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary_base is ", model.rotary_base, ", expected ",
                     model.is_rotary() ? "at least 1" : absl::StrCat("0: ", name, " has none")));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
