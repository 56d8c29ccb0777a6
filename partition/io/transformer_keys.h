#ifndef STAGECOACH_PARTITION_IO_TRANSFORMER_KEYS_H_
#define STAGECOACH_PARTITION_IO_TRANSFORMER_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "partition/cost/profile.h"
#include "partition/io/transformer.h"

namespace stagecoach::partition {

// The numbers of a transformer: their names in files, and their ranges.

struct IntegerKey {
  // Our name; those in Llama's config.json and in GPT-2's, or null.
  std::array<const char*, 3> names;
  int64_t Transformer::*member;
  int64_t max;
  int64_t min = 1;
  bool is_required = false;
};
inline constexpr int64_t kMaxTensorParallel = 1024;
inline constexpr IntegerKey kIntegerKeys[] = {
    {{"layers", "num_hidden_layers", "n_layer"}, &Transformer::layers, kMaxLayers - 2, 1, true},
    {{"hidden", "hidden_size", "n_embd"}, &Transformer::hidden, int64_t{1} << 20, 1, true},
    {{"heads", "num_attention_heads", "n_head"}, &Transformer::heads, int64_t{1} << 16, 1, true},
    {{"sequence", nullptr, nullptr}, &Transformer::sequence, int64_t{1} << 24, 1, true},
    {{"vocabulary", "vocab_size", nullptr}, &Transformer::vocabulary, int64_t{1} << 26, 1, true},
    {{"kv_heads", "num_key_value_heads", nullptr}, &Transformer::kv_heads, int64_t{1} << 16, 0},
    {{"head_size", "head_dim", nullptr}, &Transformer::head_size, int64_t{1} << 16, 0},
    {{"mlp_hidden", "intermediate_size", "n_inner"}, &Transformer::mlp_hidden, int64_t{1} << 22, 0},
    {{"context", "max_position_embeddings", "n_positions"},
     &Transformer::context,
     int64_t{1} << 24,
     0},
    {{"window", nullptr, nullptr}, &Transformer::window, int64_t{1} << 24, 0},
    {{"global_first", nullptr, nullptr}, &Transformer::global_first, kMaxLayers - 2, 0},
    {{"global_every", nullptr, nullptr}, &Transformer::global_every, kMaxLayers - 2, 0},
    {{"experts", "num_local_experts", nullptr}, &Transformer::experts, 1 << 12, 0},
    {{"experts_per_token", "num_experts_per_tok", nullptr},
     &Transformer::experts_per_token,
     1 << 12},
    {{"bytes_per_value", nullptr, nullptr}, &Transformer::bytes_per_value, 8},
    {{"optimizer_bytes_per_parameter", nullptr, nullptr},
     &Transformer::optimizer_bytes_per_parameter,
     64},
    {{"device_multiprocessors", nullptr, nullptr},
     &Transformer::device_multiprocessors,
     1 << 16,
     0},
    {{"tensor_parallel", nullptr, nullptr}, &Transformer::tensor_parallel, kMaxTensorParallel},
    {{"expert_parallel", nullptr, nullptr}, &Transformer::expert_parallel, kMaxTensorParallel},
};

struct RealKey {
  const char* name;
  double Transformer::*member;
  double min, max;
};
inline constexpr RealKey kRealKeys[] = {
    {"device_teraflops", &Transformer::device_teraflops, 1e-6, 1e9},
    {"memory_gigabytes_per_second", &Transformer::memory_gigabytes_per_second, 0, 1e9},
    {"capacity_factor", &Transformer::capacity_factor, 1, 1024},
    {"computed_scores", &Transformer::computed_scores, 0.01, 1},
    {"tensor_overlap", &Transformer::tensor_overlap, 0, 1},
};

// A key whose value is one of several words, in the order of the enumeration.
struct WordKey {
  const char* name;
  std::array<const char*, 4> words;  // null after the last
  void (*set)(Transformer&, size_t word);
};
inline constexpr WordKey kWordKeys[] = {
    {"mlp",
     {"gelu", "swiglu"},
     [](Transformer& t, size_t word) { t.mlp = static_cast<Mlp>(word); }},
    {"norm",
     {"layer_norm", "rms_norm"},
     [](Transformer& t, size_t word) { t.norm = static_cast<Norm>(word); }},
    {"bias",
     {"all", "attention", "qkv", "none"},
     [](Transformer& t, size_t word) { t.bias = static_cast<Bias>(word); }},
    {"positions",
     {"learned", "rotary"},
     [](Transformer& t, size_t word) { t.positions = static_cast<Positions>(word); }},
};

struct SwitchKey {
  const char* name;
  bool Transformer::*member;
};
inline constexpr SwitchKey kSwitchKeys[] = {
    {"tie_word_embeddings", &Transformer::tie_word_embeddings},
    {"dropout", &Transformer::dropout},
    {"sequence_parallel", &Transformer::sequence_parallel},
    {"qk_norm", &Transformer::qk_norm},
    {"post_norms", &Transformer::post_norms},
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_TRANSFORMER_KEYS_H_
