#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partition/cost/device_groups.h"
#include "partition/io/transformer_file.h"
#include "partition/io/transformer_profile.h"

namespace stagecoach::partition {
namespace {

const char* NameOf(Attention attention) {
  switch (attention) {
    case Attention::kStored:
      return "stored attention";
    case Attention::kRecomputed:
      return "recomputed attention";
    case Attention::kFlash:
      return "flash attention";
  }
  return "";
}

const char* NameOf(Recompute recompute) {
  return recompute == Recompute::kFull ? "full recomputation" : "selective recomputation";
}

// How a layer is shared: what this means for the transformer, and the devices.
struct Sharing {
  Transformer transformer;
  Cluster cluster;
};

absl::StatusOr<Sharing> ShareAmong(const Transformer& transformer, int64_t devices,
                                   const Cluster& cluster) {
  Sharing sharing = {.transformer = transformer, .cluster = {}};
  Transformer& shared = sharing.transformer;
  shared.tensor_parallel = devices;
  // If activations are whole on each device, each sends its part (the scatter/gather of Narayanan
  // et al. 2021); a sequence-parallel device has no more than its part. Groups that share experts
  // send their own samples.
  const int parts = transformer.sequence_parallel ? 1 : static_cast<int>(devices);
  ASSIGN_OR_RETURN(GroupedCluster grouped,
                   GroupDevices(cluster, static_cast<int>(shared.devices()), parts));
  sharing.cluster = std::move(grouped.cluster);
  shared.tensor_link = grouped.within;
  if (shared.expert_parallel > 1) {
    shared.expert_link = grouped.within;
    ASSIGN_OR_RETURN(const GroupedCluster tensor,
                     GroupDevices(cluster, static_cast<int>(devices), parts));
    shared.tensor_link = tensor.within;
  }
  return sharing;
}

absl::StatusOr<std::vector<Sharing>> SharingsOf(const TransformerDescription& description,
                                                const Cluster& cluster) {
  const Transformer& transformer = description.transformer;
  if (description.tensor_parallel.empty()) return std::vector<Sharing>{{transformer, cluster}};
  std::vector<Sharing> sharings;
  absl::Status refused;
  for (const int64_t devices : description.tensor_parallel) {
    if (description.any_tensor_parallel && transformer.key_heads() % devices != 0) break;
    absl::StatusOr<Sharing> sharing = ShareAmong(transformer, devices, cluster);
    if (sharing.ok()) {
      sharings.push_back(*std::move(sharing));
      continue;
    }
    refused.Update(base::Annotate(sharing.status(), transformer.expert_parallel > 1
                                                        ? "tensor_parallel times expert_parallel"
                                                        : "tensor_parallel"));
    if (!description.any_tensor_parallel) return refused;
  }
  // "auto" includes at least 1, unless there are no groups of that many to share experts.
  if (sharings.empty()) return refused;
  return sharings;
}

}  // namespace

absl::StatusOr<std::vector<ModelOption>> TransformerOptions(
    const TransformerDescription& description, const std::string& model, const Cluster& cluster) {
  ASSIGN_OR_RETURN(const std::vector<Sharing> sharings, SharingsOf(description, cluster));
  std::vector<ModelOption> options;
  for (const Sharing& sharing : sharings) {
    for (const Attention attention : description.attentions) {
      for (const Recompute recompute : description.recomputes) {
        Transformer transformer = sharing.transformer;
        transformer.attention = attention;
        transformer.recompute = recompute;
        RETURN_IF_ERROR(CheckTransformer(transformer));
        std::vector<std::string> names;
        if (description.attentions.size() > 1) names.emplace_back(NameOf(attention));
        if (sharings.size() > 1) {
          names.push_back(absl::StrCat("tensor parallelism ", transformer.tensor_parallel));
        }
        if (description.recomputes.size() > 1) names.emplace_back(NameOf(recompute));
        options.push_back({.name = absl::StrJoin(names, ", "),
                           .profile = TransformerProfile(transformer, model),
                           .cluster = sharing.cluster});
        RETURN_IF_ERROR(CheckProfile(options.back().profile));
      }
    }
  }
  return options;
}

}  // namespace stagecoach::partition
