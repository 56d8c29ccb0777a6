#ifndef STAGECOACH_ENGINE_MODEL_CATCH_EXCEPTIONS_H_
#define STAGECOACH_ENGINE_MODEL_CATCH_EXCEPTIONS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// Calls code that may be a user's, on a thread that an exception would end the process from.
// Internal: it throws, as in "Forward throws: vector::_M_range_check". Its own errors begin with
// the operation as well: "Forward: no such file".
absl::Status CatchExceptions(absl::string_view operation, absl::FunctionRef<absl::Status()> call);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_CATCH_EXCEPTIONS_H_
