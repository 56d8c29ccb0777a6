#ifndef STAGECOACH_BASE_CHECK_H_
#define STAGECOACH_BASE_CHECK_H_

#include <string>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Invariants whose failure is a programmer's error: no caller could handle it, so the process
// prints what broke and aborts. Anything that input, a file or another machine can cause is an
// absl::Status instead. Both checks are enabled in every build type.

// Aborts unless `condition` holds, printing file, line, condition and message. `message` is a
// single argument that absl::StrCat accepts; it is evaluated only on failure.
//   STAGECOACH_CHECK(stage < num_stages, absl::StrCat("stage ", stage, " of ", num_stages));
#define STAGECOACH_CHECK(condition, message)                                                      \
  do {                                                                                            \
    if (ABSL_PREDICT_FALSE(!(condition))) {                                                       \
      ::stagecoach::base::PrintAndAbort(__FILE__, __LINE__, #condition, ::absl::StrCat(message)); \
    }                                                                                             \
  } while (false)

// Aborts unless `expr`, an absl::Status or absl::StatusOr, is OK, printing the status.
#define STAGECOACH_CHECK_OK(expr) \
  ::stagecoach::base::internal::CheckOk(__FILE__, __LINE__, #expr " is OK", (expr))

namespace stagecoach::base {

// Prints "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void PrintAndAbort(const char* file, int line, const char* condition,
                                const std::string& message);

namespace internal {

inline void CheckOk(const char* file, int line, const char* condition, const absl::Status& status) {
  if (ABSL_PREDICT_FALSE(!status.ok())) {
    PrintAndAbort(file, line, condition, status.ToString());
  }
}

template <typename T>
void CheckOk(const char* file, int line, const char* condition, const absl::StatusOr<T>& result) {
  CheckOk(file, line, condition, result.status());
}

}  // namespace internal
}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_CHECK_H_
