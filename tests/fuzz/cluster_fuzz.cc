#include "partition/cluster.h"
#include "partition/files/cluster_file.h"
#include "tests/fuzz/fuzz.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  const absl::StatusOr<partition::Cluster> cluster = partition::ParseClusterToml(input);
  if (!cluster.ok()) return CheckRefusal(cluster.status());
  STAGECOACH_CHECK_OK(partition::CheckCluster(*cluster));
}

}  // namespace stagecoach::fuzz
