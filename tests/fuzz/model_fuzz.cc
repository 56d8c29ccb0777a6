#include "engine/models/model.h"
#include "engine/models/model_file.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

// Every layer can be made; preparing it later shows whether it fits the others.
absl::Status Try(absl::string_view input) {
  const absl::StatusOr<engine::Model> model = engine::ParseModel(input, /*features=*/4,
                                                                 /*classes=*/3);
  if (!model.ok()) return model.status();
  STAGECOACH_CHECK(
      model->num_layers() >= 1 && model->num_layers() <= engine::kMaxFileLayers && model->loss,
      model->num_layers());
  for (const engine::LayerFactory& make : model->layers) STAGECOACH_CHECK(make() != nullptr, "");
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
