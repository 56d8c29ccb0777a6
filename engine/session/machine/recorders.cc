#include "engine/session/machine/recorders.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

RecorderOptions FindRecorders(const Launch& launch, const Notices& notices) {
  const char* const variable = std::getenv(kRecordersVariable);
  return {
      .folder = variable == nullptr ? "" : variable,
      .launch = launch.id,
      .on_no_file = [notices](const absl::Status& why) {
        notices.TellOfRank(absl::StrCat(
            why.message(), ": if this rank hangs, its launcher does not notice, nor say where"));
      }};
}

}  // namespace stagecoach::engine
