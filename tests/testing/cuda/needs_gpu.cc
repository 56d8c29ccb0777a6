// Linked into tests for GPUs only: without a GPU the program ends with a status that CTest treats
// as skipped, or fails if $STAGECOACH_REQUIRE_GPU is 1.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::testing {
namespace {

constexpr int kSkipped = 77;

class NeedsGpu : public ::testing::Environment {
  void SetUp() override {
    const auto backend = kernels::CudaBackend::Load();
    const absl::Status usable = backend.ok() ? (*backend)->Inspect().usable : backend.status();
    if (usable.ok()) return;
    const char* const required = std::getenv("STAGECOACH_REQUIRE_GPU");
    if (required != nullptr && absl::string_view(required) == "1") FAIL() << usable;
    std::printf("skipped: %s\n", std::string(usable.message()).c_str());
    std::fflush(stdout);
    std::_Exit(kSkipped);
  }
};
[[maybe_unused]] const auto* const kNeedsGpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace stagecoach::testing
