#include "tools/stagecoach/terminal/exit_status.h"

#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_class.h"
#include "engine/comm/rendezvous.h"
#include "tools/stagecoach/terminal/messages.h"

namespace stagecoach::tools {
namespace {

ExitStatus StatusOf(base::ErrorClass error_class) {
  switch (error_class) {
    case base::ErrorClass::kUsage:
      return kExitUsage;
    case base::ErrorClass::kData:
      return kExitBadData;
    case base::ErrorClass::kConfiguration:
      return kExitBadConfiguration;
    case base::ErrorClass::kOutput:
      return kExitCannotWrite;
    case base::ErrorClass::kUnavailable:
      return kExitUnavailable;
    case base::ErrorClass::kTryAgain:
      return kExitTryAgain;
    case base::ErrorClass::kInternal:
      return kExitInternal;
  }
  STAGECOACH_CHECK(false, "no such class of errors");
}

}  // namespace

int ExitStatusOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  const base::ErrorClass error_class = base::ClassOf(status);
  const bool is_elsewhere =
      error_class != base::ErrorClass::kOutput && engine::IsOfAnotherRank(status);
  return is_elsewhere ? kExitTryAgain : StatusOf(error_class);
}

int Fail(absl::string_view command, const absl::Status& status) {
  const absl::string_view message = absl::StripTrailingAsciiWhitespace(status.message());
  const std::string line = absl::StrCat("stagecoach", command.empty() ? "" : " ", command, ": ",
                                        RankPrefix(message), Printable(message), "\n");
  std::fputs(line.c_str(), stderr);
  return ExitStatusOf(status);
}

}  // namespace stagecoach::tools
