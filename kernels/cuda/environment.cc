#include "kernels/cuda/environment.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace stagecoach::kernels {
namespace {

struct Variable {
  const char* name;
  const char* effect;
  bool zero_is_off;  // "0" means the same as no variable
};

// The variables that cuBLASLt 13 reads and that decide which products it computes, or how.
// NVIDIA_TF32_OVERRIDE has an effect whatever its value: 0 disables TF32 on a device that asks for
// it. Emulation is refused altogether, since the libraries' defaults for it may change.
constexpr Variable kVariables[] = {
    {"NVIDIA_TF32_OVERRIDE", "overrides the precision of products", false},
    {"CUBLAS_EMULATE_SINGLE_PRECISION", "emulates products of float32", true},
    {"CUBLAS_EMULATE_DOUBLE_PRECISION", "emulates products of float64", true},
    {"CUBLAS_EMULATION_STRATEGY", "decides which products are emulated", false},
    {"CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT", "sets the precision of emulation", false},
    {"CUBLASLT_HEURISTICS_LUT_FILE", "replaces the library's choice of algorithms", false},
};

}  // namespace

absl::Status CheckEnvironment() {
  for (const Variable& variable : kVariables) {
    const char* const value = std::getenv(variable.name);
    if (value == nullptr || (variable.zero_is_off && absl::string_view(value) == "0")) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the environment variable ", variable.name, " is set to \"", value,
                     "\", which ", variable.effect, " and so changes results; unset it"));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
