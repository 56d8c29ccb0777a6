#ifndef STAGECOACH_BASE_ERROR_CLASS_H_
#define STAGECOACH_BASE_ERROR_CLASS_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// Says whose mistake an error is, and so what can be done about it. Programs derive their exit
// statuses from it. The class travels in the status; Annotate and WithMessage keep it.
enum class ErrorClass : uint8_t {
  kUsage,          // a flag or its value
  kData,           // a file or folder that is read, or a NaN or infinity
  kConfiguration,  // the parts of the request do not fit together: model, plan, memory
  kOutput,         // a file or folder to be written, or standard output
  kUnavailable,    // a device, or something it needs, is missing
  kTryAgain,       // a deadline has passed, or work was abandoned because of another failure
  kInternal,       // anything that is not the user's doing
};

// Sets the class of an error where it is made: the first class set wins. OK stays OK.
absl::Status WithClass(ErrorClass error_class, absl::Status status);

template <typename T>
absl::StatusOr<T> WithClass(ErrorClass error_class, absl::StatusOr<T> result) {
  if (!result.ok()) return WithClass(error_class, std::move(result).status());
  return result;
}

// Returns InvalidArgument of class kUsage.
absl::Status UsageError(absl::string_view message);

// Returns an error of class kData.
absl::Status DataError(absl::string_view message,
                       absl::StatusCode code = absl::StatusCode::kInvalidArgument);

// Returns an error of class kOutput.
absl::Status OutputError(absl::string_view message,
                         absl::StatusCode code = absl::StatusCode::kInternal);

// Returns the class of an error, which must not be OK. Aborted and DeadlineExceeded are kTryAgain
// and Unavailable is kUnavailable, whatever was set, unless kOutput was set. If nothing was set,
// DataLoss is kData, Internal and Unknown are kInternal, and all others are kConfiguration.
ErrorClass ClassOf(const absl::Status& status);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_ERROR_CLASS_H_
