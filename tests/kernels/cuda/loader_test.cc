// The search for the CUDA backend. Its libraries are not needed: everything that is loaded here is
// wrong in some way.
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::kernels {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns Load's status when $STAGECOACH_CUDA_LIBRARY is this.
absl::Status LoadFrom(const std::string& library) {
  setenv("STAGECOACH_CUDA_LIBRARY", library.c_str(), /*replace=*/1);
  return CudaBackend::Load().status();
}

TEST(CudaLoader, NamesAFileThatIsNotThere) {
  EXPECT_THAT(LoadFrom("/nowhere/libstagecoach_cuda.so"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("/nowhere/libstagecoach_cuda.so"), HasSubstr("No such file"),
                             HasSubstr("STAGECOACH_CUDA_LIBRARY"), Not(HasSubstr("\n")))));
}

TEST(CudaLoader, NamesAFileThatIsNoLibrary) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "text.so";
  std::ofstream(path) << "This is no library.";
  EXPECT_THAT(LoadFrom(path), StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr(path), HasSubstr("cannot be loaded"))));
}

TEST(CudaLoader, NamesTheLibraryThatTheBackendMisses) {
  EXPECT_THAT(LoadFrom(STAGECOACH_BACKEND_THAT_MISSES_A_LIBRARY),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("libmissing_library.so: cannot open"),
                             HasSubstr("LD_LIBRARY_PATH"), Not(HasSubstr("\n")))));
}

TEST(CudaLoader, RefusesABackendOfAnotherVersion) {
  EXPECT_THAT(LoadFrom(STAGECOACH_BACKEND_OF_ANOTHER_VERSION),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("Stagecoach 0.0.1, backend 0"), HasSubstr("this one is"),
                             Not(HasSubstr("\n")))));
}

TEST(CudaLoader, RefusesALibraryThatIsNoBackend) {
  EXPECT_THAT(LoadFrom("libdl.so.2"), StatusIs(absl::StatusCode::kUnavailable,
                                               HasSubstr("is not Stagecoach's CUDA backend")));
}

TEST(CudaLoader, SaysWhatToDoWhereThereIsNoBackend) {
  const absl::Status status = LoadFrom("");
  // If there is one, next to this program or among the system's libraries, it was found.
  if (status.ok() || absl::StrContains(status.message(), "/libstagecoach_cuda.so")) {
    GTEST_SKIP() << "there is a CUDA backend here";
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr("has no CUDA backend"), HasSubstr("build"),
                                     Not(HasSubstr("\n")))));
}

}  // namespace
}  // namespace stagecoach::kernels
