#include "base/catch_exceptions.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::base {

absl::Status CatchExceptions(absl::string_view operation, absl::FunctionRef<absl::Status()> call) {
  try {
    return Annotate(call(), operation);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(operation, ": ", kNoMemory));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(operation, " throws: ", error.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(operation, " throws what is no std::exception"));
  }
}

}  // namespace stagecoach::base
