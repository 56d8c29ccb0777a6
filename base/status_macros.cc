#include "base/status_macros.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::base {

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status changed(status.code(), message);
  status.ForEachPayload([&changed](absl::string_view type_url, const absl::Cord& payload) {
    changed.SetPayload(type_url, payload);
  });
  return changed;
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(context, ": ", status.message()));
}

}  // namespace stagecoach::base
