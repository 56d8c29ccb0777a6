#include "kernels/cuda/cudnn/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::kernels::cudnn {
namespace {

constexpr char kFile[] = "libcudnn.so.9";
constexpr size_t kMajorVersion = 9, kLeastVersion = 91900;

template <typename Function>
absl::Status Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(kFile, " has no function ", name));
}

absl::StatusOr<Api> Load() {
  void* library = RTLD_DEFAULT;
  if (dlsym(library, "cudnnGetVersion") == nullptr) {
    library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const reason = dlerror();
      return absl::UnavailableError(reason == nullptr ? kFile : reason);
    }
  }
  Api api;
  RETURN_IF_ERROR(Find(library, "cudnnGetVersion", api.get_version));
  RETURN_IF_ERROR(Find(library, "cudnnGetErrorString", api.get_error_string));
  RETURN_IF_ERROR(Find(library, "cudnnGetLastErrorString", api.get_last_error_string));
  RETURN_IF_ERROR(Find(library, "cudnnCreate", api.create));
  RETURN_IF_ERROR(Find(library, "cudnnDestroy", api.destroy));
  RETURN_IF_ERROR(Find(library, "cudnnSetStream", api.set_stream));
  RETURN_IF_ERROR(Find(library, "cudnnBackendCreateDescriptor", api.create_descriptor));
  RETURN_IF_ERROR(Find(library, "cudnnBackendDestroyDescriptor", api.destroy_descriptor));
  RETURN_IF_ERROR(Find(library, "cudnnBackendFinalize", api.finalize));
  RETURN_IF_ERROR(Find(library, "cudnnBackendSetAttribute", api.set_attribute));
  RETURN_IF_ERROR(Find(library, "cudnnBackendGetAttribute", api.get_attribute));
  RETURN_IF_ERROR(Find(library, "cudnnBackendExecute", api.execute));
  return api;
}

absl::StatusCode CodeOf(Status status) {
  switch (static_cast<int>(status) / 1000) {
    case 1:
      return absl::StatusCode::kUnavailable;
    case 3:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<const Api*> Open() {
  // The library is never closed: its objects may live until the process ends.
  static const absl::StatusOr<Api>& api = *new absl::StatusOr<Api>(Load());
  RETURN_IF_ERROR(api.status());
  if (api->get_version() < kLeastVersion) {
    return absl::UnavailableError(absl::StrCat("cuDNN ", VersionText(*api), " is older than 9.19"));
  }
  if (api->get_version() / 10000 != kMajorVersion) {
    return absl::UnavailableError(
        absl::StrCat("cuDNN ", VersionText(*api), " is of another major version than 9"));
  }
  return &*api;
}

std::string VersionText(const Api& api) {
  const size_t version = api.get_version();
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status ToStatus(const Api& api, Status status, const char* call) {
  if (status == Status::kSuccess) return absl::OkStatus();
  char reason[512] = "";
  api.get_last_error_string(reason, sizeof reason);
  reason[sizeof reason - 1] = '\0';
  std::string text =
      absl::StrCat(call, ": ", api.get_error_string(status), reason[0] == '\0' ? "" : ": ", reason);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return absl::Status(CodeOf(status), text);
}

}  // namespace stagecoach::kernels::cudnn
