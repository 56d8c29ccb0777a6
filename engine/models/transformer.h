#ifndef STAGECOACH_ENGINE_MODELS_TRANSFORMER_H_
#define STAGECOACH_ENGINE_MODELS_TRANSFORMER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/nn/layers/rotary.h"
#include "kernels/activation.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::engine {

// The transformer architectures that are known by name.
enum class TransformerFamily : uint8_t {
  kGpt2,     // Radford et al. 2019: learned positions, layer norm, GELU, biases
  kLlama,    // Touvron et al. 2023; Mistral, Phi 3, Qwen 2, 3: rotary positions, RMS norm, SwiGLU
  kOpt,      // Zhang et al. 2022: GPT-2 with ReLU, whose first position is the third of its table
  kGptNeoX,  // Black et al. 2022, and Pythia: GPT-2 with rotary positions, of a part of each head
  kGemma,  // Gemma Team 2024, 2025: Llama with GeGLU, a scaled embedding, and more from Gemma 2 on
};
// Returns "GPT-2", "Llama", ...
const char* FamilyName(TransformerFamily family);

// A decoder of blocks, each of which is two layers of the model: a residual one around attention,
// and one around an MLP; or one layer, if they are parallel. An embedding comes first; a norm and a
// head come last.
struct Transformer {
  TransformerFamily family = TransformerFamily::kGpt2;
  int64_t blocks = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t kv_heads = 12;  // key and value heads; divides heads
  int64_t head_size = 0;  // of kLlama and kGemma; 0: width / heads
  int64_t hidden = 3072;  // hidden size of the MLP
  // The MLP's: kGelu in kGpt2, and unused in kLlama and kGemma, which have SwiGLU and GeGLU.
  kernels::Activation activation = kernels::Activation::kGelu;
  int64_t context = 1024;  // T, positions of a sample
  int64_t vocabulary = 50257;
  double norm_epsilon = 1e-5;
  double rotary_base = 0.0;           // 0 without rotary positions
  RotaryScaling rotary_scaling = {};  // with rotary positions
  int64_t rotary_size = 0;            // kGptNeoX's and Phi 4's: rotated numbers of a head; 0: all
  // kGptNeoX's: attention and MLP read the same input, to which both outputs are added.
  bool is_parallel = false;
  // A bias of queries, keys and values in kLlama, as in Qwen 2. Others have biases everywhere.
  bool qkv_bias = false;
  // A norm of each head of the queries and the keys in kLlama, as in Qwen 3, and in Gemma 3.
  bool qk_norm = false;
  // kLlama's: Hugging Face's files have queries, keys and values in one tensor, and gate and up in
  // another, as those of Phi 3 do; adapters belong to these.
  bool has_joined_tensors = false;
  // kGemma's: a norm also follows attention and MLP. Gemma 1 has none of what follows up to
  // logit_cap.
  bool has_post_norms = false;
  // kLlama's and kGemma's: positions that one sees, itself included; 0: all before it.
  int64_t window = 0;
  // kLlama's with a window, if it has qkv_bias or qk_norm: the first N blocks see all.
  int64_t global_first = 0;
  // From here to logit_cap, all is kGemma's.
  int64_t global_every = 0;  // with a window: every N-th block sees all; 0: none does
  // Gemma 3's rotary base in blocks with a window, whose positions are not scaled; 0: both are as
  // in the other blocks.
  double local_rotary_base = 0.0;
  int64_t query_scalar = 0;  // scores are divided by its root; 0: as many as a head has numbers
  double score_cap = 0.0;    // Gemma 2's: scores stay between this and its negative; 0: any
  double logit_cap = 0.0;    // the same of the head's logits
  // How the weights of linear layers are stored, the head's excepted; nothing: as others.
  std::optional<kernels::Quantization> quantization = std::nullopt;
  bool is_tied = true;  // the head's weight is the embedding's table
  // Positions that have vectors, of which a sample uses the first; 0: as many as the context, or
  // none with rotary positions.
  int64_t positions = 0;
  // Tokens with a meaning: each of the first ends a text, and the second begins one.
  std::vector<int64_t> end_of_text;
  std::optional<int64_t> begin_of_text;

  int64_t size_of_head() const { return head_size != 0 ? head_size : width / heads; }
  // Returns whether that block, counted from 0, has the window.
  bool has_window(int64_t block) const {
    return window != 0 && block >= global_first &&
           (global_every == 0 || (block + 1) % global_every != 0);
  }
  // Returns the most positions of a sample: more than the context if these are scaled on demand.
  int64_t longest_context() const {
    if (rotary_scaling.kind != RotaryKind::kDynamic) return context;
    const double longest =
        static_cast<double>(rotary_scaling.original_positions) * rotary_scaling.factor;
    return longest > static_cast<double>(context) ? static_cast<int64_t>(longest) : context;
  }
  // Returns how many numbers of a head are rotated, with rotary positions.
  int64_t rotated_numbers() const { return rotary_size != 0 ? rotary_size : size_of_head(); }
  bool is_rotary() const { return family == TransformerFamily::kGptNeoX || has_gate(); }
  // RMS norms, a gated MLP, and no biases but those of queries, keys and values.
  bool has_gate() const {
    return family == TransformerFamily::kLlama || family == TransformerFamily::kGemma;
  }
  // Rows in the table of positions before that of the first one, which nothing reads.
  int64_t position_offset() const { return family == TransformerFamily::kOpt ? 2 : 0; }
  // Rows behind those that a sample uses.
  int64_t later_positions() const { return positions > context ? positions - context : 0; }

  friend bool operator==(const Transformer&, const Transformer&) = default;
};

// Upper limit of every count of a Transformer.
inline constexpr int64_t kMaxTransformerExtent = int64_t{1} << 24;

// Checks a description. InvalidArgument: a count below 1 or above kMaxTransformerExtent, heads that
// do not divide the width if it determines their size, kv_heads that do not divide heads, or that
// differ from heads in others than Llama and Gemma, an option that the family does not have, a
// scaling that is none.
absl::Status CheckTransformer(const Transformer& model);

// Returns the first difference that does not show in the shapes of parameters: "heads 12 and 8"; ""
// if there is none.
std::string DifferenceOf(const Transformer& a, const Transformer& b);

// Returns the model as a model file (model_file.h), with the initial values that GPT-2 was
// published with: normal with standard deviation 0.02, divided by the square root of the number of
// sums in the layers before a sum. Pre-condition: CheckTransformer.
std::string ModelFileOf(const Transformer& model);

// Is the inverse, for files that may have other initial values, and adapters. FailedPrecondition:
// the file's layers are not those of one of the families. Errors of base::ParseToml.
absl::StatusOr<Transformer> TransformerOf(absl::string_view model_file);

// Returns the transformer of that name:
//   gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, llama3.2-1b, llama3.2-3b, llama3-8b, llama3-70b,
//   qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen3-0.6b, qwen3-8b, opt-125m, opt-1.3b, opt-6.7b,
//   pythia-160m, pythia-1.4b, pythia-6.9b, gemma2-2b, gemma2-9b, gemma3-270m, gemma3-1b
//                                                 as they were published
//   gpt2:blocks=4,width=128,heads=4,context=64    the smallest of them, except for the options
//   llama:blocks=12,width=768,heads=12,kv_heads=4,hidden=2048,context=1024,vocabulary=32000,
//     rotary_base=10000,norm_epsilon=1e-5,tied=0,qkv_bias=0,qk_norm=0,window=0,global_first=0
//                                                   these are the defaults; "llama" alone works
//                                                   too, and head_size may be set
//   opt:blocks=4,width=128,heads=4,context=64     the same for OPT
//   gpt_neox:blocks=4,width=128,heads=4,context=64,rotary_size=8,parallel=1       and for GPT-NeoX
//   gemma:blocks=12,width=640,heads=4,kv_heads=1,head_size=256,hidden=2560,context=1024,window=512,
//     global_every=6,qk_norm=1,post_norms=1,query_scalar=256,local_rotary_base=10000,score_cap=0,
//     logit_cap=0                                   and for Gemma, these are those of Gemma 3
// NotFound: the text names none. InvalidArgument: it does, but what follows is wrong.
absl::StatusOr<Transformer> NamedTransformer(absl::string_view name);
std::vector<std::string> TransformerNames();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_TRANSFORMER_H_
