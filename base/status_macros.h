#ifndef STAGECOACH_BASE_STATUS_MACROS_H_
#define STAGECOACH_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Both macros are single statements: they may follow an `if` without braces, and may be nested in a
// lambda inside one another's argument. The enclosing function returns absl::Status or any
// absl::StatusOr. An expression with a comma outside parentheses must be wrapped in parentheses.

// Evaluates `expr`, an absl::Status, and returns it from the enclosing function if it is an error.
#define RETURN_IF_ERROR(expr) \
  STAGECOACH_RETURN_IF_ERROR_(STAGECOACH_UNIQUE_NAME_(stagecoach_status_, __COUNTER__), expr)

// Evaluates `expr`, an absl::StatusOr<T>, returns its status from the enclosing function if it is
// an error, and otherwise moves its value into `lhs`, which may be a declaration:
//   ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
#define ASSIGN_OR_RETURN(lhs, expr) \
  STAGECOACH_ASSIGN_OR_RETURN_(STAGECOACH_UNIQUE_NAME_(stagecoach_result_, __COUNTER__), lhs, expr)

#define STAGECOACH_RETURN_IF_ERROR_(status, expr)        \
  do {                                                   \
    ::absl::Status status = (expr);                      \
    if (ABSL_PREDICT_FALSE(!status.ok())) return status; \
  } while (false)

// A statement expression (GCC and Clang) lets one statement both declare a variable in the
// enclosing scope and return from the function.
#define STAGECOACH_ASSIGN_OR_RETURN_(result, lhs, expr)                      \
  lhs = __extension__({                                                      \
    auto result = (expr);                                                    \
    if (ABSL_PREDICT_FALSE(!result.ok())) return std::move(result).status(); \
    ::stagecoach::base::internal::TakeValue(std::move(result));              \
  })

#define STAGECOACH_UNIQUE_NAME_(prefix, counter) STAGECOACH_CONCATENATE_(prefix, counter)
#define STAGECOACH_CONCATENATE_(a, b) a##b

namespace stagecoach::base {

// Returns the same error with another message; code and payloads are kept. OK stays OK.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

// Returns the same error with "context: " before its message; code and payloads are kept. OK stays
// OK.
//   RETURN_IF_ERROR(Annotate(status, absl::StrCat("stage ", stage)));
absl::Status Annotate(const absl::Status& status, absl::string_view context);

namespace internal {

template <typename T>
T TakeValue(absl::StatusOr<T>&& result) {
  return *std::move(result);
}

}  // namespace internal
}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_STATUS_MACROS_H_
