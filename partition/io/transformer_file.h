#ifndef STAGECOACH_PARTITION_IO_TRANSFORMER_FILE_H_
#define STAGECOACH_PARTITION_IO_TRANSFORMER_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cost/cluster.h"
#include "partition/cost/model_option.h"
#include "partition/io/transformer.h"

namespace stagecoach::partition {

// The contents of a file: one transformer, or several among which the planner chooses the best.
struct TransformerDescription {
  Transformer transformer;                                   // the first of them
  std::vector<Attention> attentions = {Attention::kStored};  // at least one
  std::vector<Recompute> recomputes = {Recompute::kFull};    // at least one
  // Devices of a cluster that share each layer. Empty: transformer.devices() devices are one device
  // of the cluster.
  std::vector<int64_t> tensor_parallel = {};
  bool any_tensor_parallel = false;  // all that the cluster and heads allow

  friend bool operator==(const TransformerDescription&, const TransformerDescription&) = default;
};

// Parses TOML with the fields of Transformer as keys (transformer_keys.h), except the links, which
// follow from the cluster. Required are layers, hidden, heads, sequence and vocabulary.
// "optimizer_bytes_per_parameter" is 12 for 2 bytes per value and 8 for 4. Lists, or "auto" for
// all, leave the choice to the planner:
//   micro_batch_rows   a number, or ascending ones; "auto": 1, 2, 4, 8, 16
//   attention          "stored" (default), "recomputed", "flash"
//   recompute          "full" (default), "selective"
//   tensor_parallel    a number means that this many devices are one of the cluster's; a list,
//                      even of one number, that this many of the cluster's devices share each
//                      layer. "auto": all powers of two that divide the heads of keys and the
//                      devices of a host
// A list also sets what selective recomputation repeats:
//   recompute_operators   "scores" (default), "norms", "activation"
//
//   version = 1
//   layers = 96
//   hidden = 12288
//   heads = 96
//   sequence = 2048
//   vocabulary = 51200
//
// The names of Hugging Face's config.json are read as well. "model_type" is then one of its
// families, "gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2" or "qwen3": everything
// unspecified is as in that family, attention is "flash", the sequence as long as the model allows,
// and the keys of such a file that do not affect costs are ignored. A text that begins with "{" is
// a config.json, which may also have our keys; TOML can name one, "config", whose values it
// overrides. Such a path is relative to `folder`; without a folder it is refused.
//
// InvalidArgument starts with the line, then the path of the value. Nothing is ignored that may
// change the cost of the model.
absl::StatusOr<TransformerDescription> ParseTransformer(
    absl::string_view text, const std::optional<std::string>& folder = std::nullopt);

// Reads the same from a file, up to 1 MiB, whose folder is that of its "config".
absl::StatusOr<TransformerDescription> ReadTransformer(const std::string& path);

// Returns all options that a description leaves open, for the devices of a cluster. The model is
// named `model`. InvalidArgument: CheckTransformer, CheckProfile; devices that cannot be grouped as
// described (GroupDevices).
absl::StatusOr<std::vector<ModelOption>> TransformerOptions(
    const TransformerDescription& description, const std::string& model, const Cluster& cluster);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_TRANSFORMER_FILE_H_
