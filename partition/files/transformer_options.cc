#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partition/device_groups.h"
#include "partition/files/transformer_profile.h"

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

// How a layer is shared: what the transformer says of it, and the devices.
struct Sharing {
  Transformer transformer;
  Cluster cluster;
};

absl::StatusOr<Sharing> ShareAmong(const Transformer& transformer, int64_t devices,
                                   const Cluster& cluster) {
  // Where activations are whole on each device, each sends its part (the scatter/gather of
  // Narayanan et al. 2021); a sequence-parallel one has no more than its part.
  ASSIGN_OR_RETURN(GroupedCluster grouped,
                   GroupDevices(cluster, static_cast<int>(devices),
                                /*divides_messages=*/!transformer.sequence_parallel));
  Sharing sharing = {.transformer = transformer, .cluster = std::move(grouped.cluster)};
  sharing.transformer.tensor_parallel = devices;
  sharing.transformer.tensor_link = grouped.within;
  return sharing;
}

absl::StatusOr<std::vector<Sharing>> SharingsOf(const TransformerDescription& description,
                                                const Cluster& cluster) {
  const Transformer& transformer = description.transformer;
  if (description.tensor_parallel.empty()) return std::vector<Sharing>{{transformer, cluster}};
  std::vector<Sharing> sharings;
  for (const int64_t devices : description.tensor_parallel) {
    if (description.any_tensor_parallel && transformer.heads % devices != 0) break;
    absl::StatusOr<Sharing> sharing = ShareAmong(transformer, devices, cluster);
    if (sharing.ok()) {
      sharings.push_back(*std::move(sharing));
    } else if (!description.any_tensor_parallel) {
      return base::Annotate(sharing.status(), "tensor_parallel");
    }
  }
  return sharings;  // "auto": 1, at least
}

}  // namespace

absl::StatusOr<std::vector<ModelOption>> TransformerOptions(
    const TransformerDescription& description, const std::string& model, const Cluster& cluster) {
  ASSIGN_OR_RETURN(const std::vector<Sharing> sharings, SharingsOf(description, cluster));
  std::vector<ModelOption> options;
  for (const Sharing& sharing : sharings) {
    for (const Attention attention : description.attentions) {
      Transformer transformer = sharing.transformer;
      transformer.attention = attention;
      RETURN_IF_ERROR(CheckTransformer(transformer));
      std::vector<std::string> names;
      if (description.attentions.size() > 1) names.emplace_back(NameOf(attention));
      if (sharings.size() > 1) {
        names.push_back(absl::StrCat("tensor parallelism ", transformer.tensor_parallel));
      }
      options.push_back({.name = absl::StrJoin(names, ", "),
                         .profile = TransformerProfile(transformer, model),
                         .cluster = sharing.cluster});
      RETURN_IF_ERROR(CheckProfile(options.back().profile));
    }
  }
  return options;
}

}  // namespace stagecoach::partition
