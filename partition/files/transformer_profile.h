#ifndef STAGECOACH_PARTITION_FILES_TRANSFORMER_PROFILE_H_
#define STAGECOACH_PARTITION_FILES_TRANSFORMER_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cluster.h"
#include "partition/model_option.h"
#include "partition/profile.h"
#include "schedule/costs.h"

namespace stagecoach::partition {

// In formulas: s = sequence, h = hidden, a = heads, L = layers, V = vocabulary, t =
// tensor_parallel, b = rows of a micro-batch (sequences), w = bytes_per_value.

enum class Attention : uint8_t {
  kStored,      // keeps its scores, which grow with s^2
  kRecomputed,  // computes them again in B: selective recomputation
  kFlash,       // neither keeps them nor needs room for all of them: FlashAttention
};

// A decoder-only transformer like GPT-3: embedding, layers of attention and a perceptron of four
// times the width, and a head that shares the embedding's table and computes the loss.
struct Transformer {
  int64_t layers = 1;
  int64_t hidden = 1;
  int64_t heads = 1;
  int64_t sequence = 1;
  int64_t vocabulary = 1;
  std::vector<int64_t> micro_batch_rows = {1};
  // Of activations, parameters and gradients.
  int64_t bytes_per_value = 2;
  // Of the optimizer, for each parameter. 12: Adam in mixed precision, with two moments and a copy
  // of the parameters in 4 bytes each; with parameter and gradient that makes 16.
  int64_t optimizer_bytes_per_parameter = 12;
  // Devices that share each layer, acting as one device of the cluster. Bytes are those of one of
  // them, times those of all together.
  int64_t tensor_parallel = 1;
  bool sequence_parallel = false;  // they also share what tensor parallelism leaves whole
  Attention attention = Attention::kStored;
  double device_teraflops = 100;  // that a device achieves in products of matrices that fill it
  // A device computes a product in tiles of kTileRows x kTileColumns, as many at once as it has
  // multiprocessors, and the last of these waves takes as long as a full one ("wave quantization"
  // in NVIDIA's Matrix Multiplication Background User's Guide). 0: all products fill it.
  int64_t device_multiprocessors = 0;
  // At which a device reads and writes its memory. 0: what does nothing else takes no time.
  double memory_gigabytes_per_second = 0;
  // The slowest between devices that share a layer, for their all-reduces. By default these take
  // no time.
  schedule::Link tensor_link;

  friend bool operator==(const Transformer&, const Transformer&) = default;
};

inline constexpr int64_t kTileRows = 256;
inline constexpr int64_t kTileColumns = 128;

// InvalidArgument, as "field: what is wrong, and the range".
absl::Status CheckTransformer(const Transformer& transformer);

// What one layer keeps from F until its backward pass, its input included, on one device:
// Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
// table 2. For w = 2
//   s b h (10 + 24 / t + 5 a s / (h t))       (without parallelism s b h (34 + 5 a s / h))
//   s b h (34 + 5 a s / h) / t                with sequence_parallel
// and the term of a only where attention is stored. (For any w: masks of dropout take 1 byte, so 34
// is 16 w + 2, 10 is 4 w + 2, 24 is 12 w and 5 is 2 w + 1.) What is shared is rounded up.
int64_t ActivationBytes(const Transformer& transformer, int64_t rows);

// The layers "embedding", "layer0", "layer1", ..., "head". Pre-condition: CheckTransformer.
//
// Between them passes w s b h, divided by t with sequence_parallel. Of what a layer keeps, the
// inputs of its four products (7 w s b h) are kept until W, and from B until W the gradients of
// their outputs (9 w s b h; together the 32 s b h of Qi et al. 2023, "Zero Bubble Pipeline
// Parallelism", for w = 2). It may do F again, keeping its input alone. The embedding's dropout
// keeps a mask; the head keeps its norm's input and output and the logits in 4 bytes
// (4 s b h (1 + V / h) as published by Korthikanti et al.). Its copy of the table takes memory, but
// is not counted in its parameters.
//
// Times: transformer_times.h. Without device_multiprocessors, memory_gigabytes_per_second and a
// tensor_link, flops over the speed of the devices; embedding and optimizer then take none.
Profile TransformerProfile(const Transformer& transformer, std::string model);

// What a file says: one transformer, or several of which the planner takes the best.
struct TransformerDescription {
  Transformer transformer;            // the first of them
  std::vector<Attention> attentions;  // at least one
  // Devices of a cluster that share each layer. Empty: transformer.tensor_parallel devices are one
  // device of the cluster.
  std::vector<int64_t> tensor_parallel = {};
  bool any_tensor_parallel = false;  // those of tensor_parallel that the cluster and heads allow

  friend bool operator==(const TransformerDescription&, const TransformerDescription&) = default;
};

// TOML with the fields of Transformer as keys, but for tensor_link, which follows from the cluster.
// Required are layers, hidden, heads, sequence and vocabulary. "optimizer_bytes_per_parameter" is
// 12 for 2 bytes per value and 8 for 4. Lists, or "auto" for all, leave it to the planner:
//   micro_batch_rows   a number, or ascending ones; "auto": 1, 2, 4, 8, 16
//   attention          "stored" (default), "recomputed", "flash"
//   tensor_parallel    a number means that so many devices are one of the cluster's; a list, even
//                      of one number, that so many of the cluster's devices share each layer.
//                      "auto": all powers of two that divide the heads and the devices of a host
//
//   version = 1
//   layers = 96
//   hidden = 12288
//   heads = 96
//   sequence = 2048
//   vocabulary = 51200
//
// InvalidArgument starts with the line, then the path of the value.
absl::StatusOr<TransformerDescription> ParseTransformer(absl::string_view text);

// The same of a file, up to 1 MiB.
absl::StatusOr<TransformerDescription> ReadTransformer(const std::string& path);

// All that a description leaves open, for the devices of a cluster. The model is called `model`.
// InvalidArgument: CheckTransformer, CheckProfile; devices that cannot be grouped as it says
// (GroupDevices).
absl::StatusOr<std::vector<ModelOption>> TransformerOptions(
    const TransformerDescription& description, const std::string& model, const Cluster& cluster);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_FILES_TRANSFORMER_PROFILE_H_
