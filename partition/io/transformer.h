#ifndef STAGECOACH_PARTITION_IO_TRANSFORMER_H_
#define STAGECOACH_PARTITION_IO_TRANSFORMER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {

// Letters in formulas: s = sequence, h = hidden, a = heads, d = head_size, k = kv_heads, f =
// mlp_hidden, L = layers, V = vocabulary, t = tensor_parallel, E = experts, K = experts_per_token,
// e = expert_parallel, b = micro-batch size (sequences), w = bytes_per_value.

enum class Attention : uint8_t {
  kStored,      // keeps its scores, which grow with s^2
  kRecomputed,  // computes them again in B: selective recomputation of every layer
  kFlash,       // neither keeps them nor needs room for all of them (FlashAttention)
};
enum class Mlp : uint8_t {
  kGelu,    // h -> f -> h
  kSwiGlu,  // h -> f twice, one gating the other, then f -> h: Shazeer 2020; GeGLU costs the same
};
enum class Norm : uint8_t { kLayerNorm, kRmsNorm };  // gain and offset; gain alone
enum class Bias : uint8_t {
  kAll,        // of every product except the head's and the router's
  kAttention,  // of queries, keys, values and the output of attention
  kQkv,        // of queries, keys and values
  kNone,
};
enum class Positions : uint8_t { kLearned, kRotary };  // a table added to the embedding; no table

// The part of F that a layer repeats within B, where the planner lets it.
enum class Recompute : uint8_t {
  kFull,       // all of F, keeping only its input
  kSelective,  // some operators (RepeatedOperators), keeping what all others produce
};
struct RepeatedOperators {
  bool scores = true;       // products, softmax and dropout of attention, where it is stored
  bool norms = false;       // both norms
  bool activation = false;  // the activation function of the perceptron, with its gate

  friend bool operator==(const RepeatedOperators&, const RepeatedOperators&) = default;
};

// A decoder-only transformer and the devices that train it: embedding, layers of attention and a
// perceptron, and a head that computes the loss. Unless stated otherwise, a GPT-3.
struct Transformer {
  int64_t layers = 1;
  int64_t hidden = 1;
  int64_t heads = 1;
  int64_t sequence = 1;  // tokens per sample
  int64_t vocabulary = 1;
  int64_t kv_heads = 0;    // heads of keys and values: grouped-query attention. 0: as many as heads
  int64_t head_size = 0;   // 0: hidden / heads
  int64_t mlp_hidden = 0;  // width of the perceptron, or of each expert. 0: 4 hidden
  int64_t context = 0;     // rows of the table of learned positions. 0: the sequence length
  // Perceptrons per layer, among which a router chooses experts_per_token for each token (Shazeer
  // et al. 2017, "Outrageously Large Neural Networks"). 0: one, for all tokens.
  int64_t experts = 0;
  int64_t experts_per_token = 1;
  Mlp mlp = Mlp::kGelu;
  Norm norm = Norm::kLayerNorm;
  Bias bias = Bias::kAll;
  Positions positions = Positions::kLearned;
  bool qk_norm = false;     // a norm of each head of queries and keys, whose gains all heads share
  bool post_norms = false;  // attention and perceptron have norms behind them, too
  // The positions that one sees in layers with a window, itself included. 0: no layer has one.
  int64_t window = 0;
  int64_t global_first = 0;  // the first layers, which have no window
  int64_t global_every = 0;  // of the layers behind them, every N-th has none. 0: all have one
  bool tie_word_embeddings = true;  // the head uses the embedding's table
  bool dropout = true;              // after attention, perceptron and embedding, and on scores
  std::vector<int64_t> micro_batch_rows = {1};
  // The size of a value of activations, parameters and gradients.
  int64_t bytes_per_value = 2;
  // Optimizer bytes per parameter. 12: Adam in mixed precision, with two moments and a copy of the
  // parameters in 4 bytes each; with parameter and gradient that makes 16.
  int64_t optimizer_bytes_per_parameter = 12;
  // Devices that share each layer, acting as one device of the cluster. Bytes are those of one of
  // them, times those of all together.
  int64_t tensor_parallel = 1;
  bool sequence_parallel = false;  // they also share what tensor parallelism leaves whole
  // Groups of tensor_parallel devices that share the experts, each having E / e of them, and the
  // samples of a micro-batch, each having b / e, rounded up; everything else is whole in each
  // group. With the t devices of each, they act as one device of the cluster.
  int64_t expert_parallel = 1;
  // Tokens of the busiest expert, divided by the mean (GShard's capacity factor). 1: balanced.
  double capacity_factor = 1;
  Attention attention = Attention::kStored;
  // The share of its scores that flash attention computes. 0.5: kernels that skip what is masked.
  double computed_scores = 1;
  Recompute recompute = Recompute::kFull;
  RepeatedOperators repeated;
  double device_teraflops = 100;  // achieved by a device in matrix products that fill it
  // A device computes a product in tiles of kTileRows x kTileColumns, as many at once as it has
  // multiprocessors, and the last of these waves takes as long as a full one ("wave quantization"
  // in NVIDIA's Matrix Multiplication Background User's Guide). 0: all products fill it.
  int64_t device_multiprocessors = 0;
  // Rate at which a device reads and writes its memory. 0: operations bound by memory take no time.
  double memory_gigabytes_per_second = 0;
  // The slowest link between devices that share a layer, for their all-reduces. By default these
  // take no time.
  schedule::Link tensor_link;
  // The share of these messages that is sent while the products of the same pass are computed; at
  // most the time of those products.
  double tensor_overlap = 0;
  // The slowest link between devices that share experts, for their all-to-all and for the gradients
  // of everything else. By default these take no time.
  schedule::Link expert_link;

  int64_t key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t size_of_head() const { return head_size > 0 ? head_size : hidden / heads; }
  int64_t query_width() const { return heads * size_of_head(); }
  int64_t key_width() const { return key_heads() * size_of_head(); }  // also the width of values
  int64_t qkv_width() const { return query_width() + 2 * key_width(); }
  int64_t mlp_width() const { return mlp_hidden > 0 ? mlp_hidden : 4 * hidden; }
  int64_t mlp_inputs() const { return mlp == Mlp::kSwiGlu ? 2 : 1; }  // of width f
  // Returns whether that layer has the window.
  bool has_window(int64_t layer) const {
    return window > 0 && layer >= global_first &&
           (global_every == 0 || (layer - global_first + 1) % global_every != 0);
  }
  // Returns the number of devices of a cluster that act as one.
  int64_t devices() const { return tensor_parallel * expert_parallel; }

  friend bool operator==(const Transformer&, const Transformer&) = default;
};

inline constexpr int64_t kTileRows = 256;
inline constexpr int64_t kTileColumns = 128;

// Returns InvalidArgument, as "field: what is wrong, and the range".
absl::Status CheckTransformer(const Transformer& transformer);

// The parameters of one layer: those of its experts, and all others.
struct LayerParameters {
  int64_t experts = 0;
  int64_t others = 0;
};
LayerParameters ParametersOfLayer(const Transformer& transformer);
// Return the parameters of the embedding, with its table of positions; of the last norm; and of the
// head's own table, 0 if it uses the embedding's.
int64_t ParametersOfEmbedding(const Transformer& transformer);
int64_t ParametersOfNorm(const Transformer& transformer);
int64_t ParametersOfHead(const Transformer& transformer);

// Return the parameters of the whole model, and those that one token uses: only K of the experts.
int64_t Parameters(const Transformer& transformer);
int64_t ActiveParameters(const Transformer& transformer);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_TRANSFORMER_H_
