#include "partition/io/transformer_file.h"
#include "partition/io/transformer_profile.h"
#include "tests/fuzz/support/profile_round_trip.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  const absl::StatusOr<partition::TransformerDescription> description =
      partition::ParseTransformer(input);
  if (!description.ok()) return description.status();
  const absl::StatusOr<std::vector<partition::ModelOption>> options =
      partition::TransformerOptions(*description, "fuzz", partition::UniformCluster(8));
  if (!options.ok()) return options.status();
  return CheckProfileRoundTrip(options->front().profile);
}

}  // namespace stagecoach::fuzz
