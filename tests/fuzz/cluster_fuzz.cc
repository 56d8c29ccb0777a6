#include "partition/cost/cluster.h"
#include "partition/io/cluster_file.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  const absl::StatusOr<partition::Cluster> cluster = partition::ParseClusterToml(input);
  if (!cluster.ok()) return cluster.status();
  STAGECOACH_CHECK_OK(partition::CheckCluster(*cluster));
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
