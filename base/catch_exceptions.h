#ifndef STAGECOACH_BASE_CATCH_EXCEPTIONS_H_
#define STAGECOACH_BASE_CATCH_EXCEPTIONS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

inline constexpr char kNoMemory[] =
    "the system refused memory; see the limits of memory (ulimit -v, memory.max)";

// Calls code that may be a user's, on a thread where an exception would end the process. Internal:
// the code throws, as in "Forward throws: vector::_M_range_check"; ResourceExhausted if it throws
// because it is out of memory. Errors that it returns are prefixed with the operation as well:
// "Forward: no such file".
absl::Status CatchExceptions(absl::string_view operation, absl::FunctionRef<absl::Status()> call);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_CATCH_EXCEPTIONS_H_
