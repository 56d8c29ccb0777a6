#include "tools/cli/exit_status.h"

#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "engine/launch/rendezvous.h"
#include "tools/cli/messages.h"

namespace stagecoach::tools {
namespace {

constexpr char kOriginUrl[] = "stagecoach/origin";

}  // namespace

absl::Status From(Origin origin, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kOriginUrl).has_value()) {
    status.SetPayload(kOriginUrl, absl::Cord(absl::StrCat(static_cast<int>(origin))));
  }
  return status;
}

int ExitStatusOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  const absl::optional<absl::Cord> mark = status.GetPayload(kOriginUrl);
  const auto is = [&](Origin origin) {
    return mark.has_value() && *mark == absl::StrCat(static_cast<int>(origin));
  };
  if (is(Origin::kOutput)) return kExitCannotWrite;
  const bool is_elsewhere = engine::IsOfAnotherRank(status) || absl::IsAborted(status);
  if (is_elsewhere || absl::IsDeadlineExceeded(status)) return kExitTryAgain;
  if (absl::IsUnavailable(status)) return kExitUnavailable;
  if (is(Origin::kUsage)) return kExitUsage;
  if (is(Origin::kData)) return kExitBadData;
  if (is(Origin::kConfiguration)) {
    return absl::IsDataLoss(status) ? kExitBadData : kExitBadConfiguration;
  }
  if (absl::IsResourceExhausted(status)) return kExitBadConfiguration;
  return kExitInternal;
}

int Fail(absl::string_view command, const absl::Status& status) {
  const absl::string_view message = absl::StripTrailingAsciiWhitespace(status.message());
  const std::string line = absl::StrCat("stagecoach", command.empty() ? "" : " ", command, ": ",
                                        RankPrefix(message), Printable(message), "\n");
  std::fputs(line.c_str(), stderr);
  return ExitStatusOf(status);
}

}  // namespace stagecoach::tools
