#include "base/error_class.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "base/check.h"

namespace stagecoach::base {
namespace {

constexpr char kUrl[] = "stagecoach/error-class";

// The texts of the payload, in the order of ErrorClass.
constexpr std::array<absl::string_view, 7> kNames = {
    "usage", "data", "configuration", "output", "unavailable", "try again", "internal"};

std::optional<ErrorClass> ClassSetIn(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kUrl);
  if (!payload.has_value()) return std::nullopt;
  const auto* const name = std::find(kNames.begin(), kNames.end(), *payload);
  STAGECOACH_CHECK(name != kNames.end(), "a class of errors without a name");
  return static_cast<ErrorClass>(name - kNames.begin());
}

ErrorClass ClassOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorClass::kTryAgain;
    case absl::StatusCode::kUnavailable:
      return ErrorClass::kUnavailable;
    case absl::StatusCode::kDataLoss:
      return ErrorClass::kData;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return ErrorClass::kInternal;
    default:
      return ErrorClass::kConfiguration;
  }
}

}  // namespace

absl::Status WithClass(ErrorClass error_class, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kUrl).has_value()) {
    status.SetPayload(kUrl, absl::Cord(kNames[static_cast<size_t>(error_class)]));
  }
  return status;
}

absl::Status UsageError(absl::string_view message) {
  return WithClass(ErrorClass::kUsage, absl::InvalidArgumentError(message));
}

absl::Status DataError(absl::string_view message, absl::StatusCode code) {
  return WithClass(ErrorClass::kData, absl::Status(code, message));
}

absl::Status OutputError(absl::string_view message, absl::StatusCode code) {
  return WithClass(ErrorClass::kOutput, absl::Status(code, message));
}

ErrorClass ClassOf(const absl::Status& status) {
  STAGECOACH_CHECK(!status.ok(), "only an error has a class");
  const std::optional<ErrorClass> set = ClassSetIn(status);
  const ErrorClass of_code = ClassOfCode(status.code());
  if (set == ErrorClass::kOutput || !set.has_value()) return set.value_or(of_code);
  const bool code_decides = of_code == ErrorClass::kTryAgain || of_code == ErrorClass::kUnavailable;
  return code_decides ? of_code : *set;
}

}  // namespace stagecoach::base
