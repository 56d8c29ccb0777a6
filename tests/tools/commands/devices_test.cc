// What `stagecoach devices` prints on machines with and without what CUDA needs. GPUs are emulated
// (tests/testing/cuda/stand_in.h).

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kLibrary[] = "STAGECOACH_CUDA_LIBRARY";
constexpr char kStandIn[] = "STAGECOACH_CUDA_STAND_IN";

// The command asks a question, so no answer is a failure.
Finished Devices(const std::string& library, const std::string& stand_in,
                 const std::vector<std::string>& more = {}) {
  const ScopedVariable with_library(kLibrary, library);
  const ScopedVariable with_stand_in(kStandIn, stand_in);
  std::vector<std::string> arguments = {"devices"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Finished run = RunStagecoach(arguments);
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.err, IsEmpty());
  return run;
}

nlohmann::json DevicesAsJson(const std::string& library, const std::string& stand_in) {
  const std::vector<nlohmann::json> events = Devices(library, stand_in, {"--json"}).Events();
  EXPECT_THAT(events, SizeIs(1));
  return events.empty() ? nlohmann::json() : events[0];
}

// Returns why there are no CUDA devices, which must be one line, in text as in JSON.
std::string ReasonWithout(const std::string& library, const std::string& stand_in) {
  const nlohmann::json all = DevicesAsJson(library, stand_in);
  EXPECT_THAT(all["devices"], SizeIs(1));
  EXPECT_EQ(all["devices"][0]["kind"], "cpu");
  EXPECT_EQ(all["cuda"]["usable"], false);
  const auto reason = all["cuda"]["reason"].get<std::string>();
  EXPECT_THAT(reason, Not(HasSubstr("\n")));
  EXPECT_THAT(Devices(library, stand_in).OutLines(),
              Contains(absl::StrCat("No CUDA devices: ", reason, ".")));
  return reason;
}

TEST(Devices, ListsTheCpu) {
  const nlohmann::json cpu = DevicesAsJson(STAGECOACH_EMULATED_CUDA, "gpus=2")["devices"][0];
  EXPECT_EQ(cpu["kind"], "cpu");
  EXPECT_GT(cpu["processors"], 0);
  EXPECT_GT(cpu["memory_bytes"], 0);
  EXPECT_FALSE(cpu["instruction_set"].get<std::string>().empty());
  EXPECT_FALSE(cpu["kernels_arch"].get<std::string>().empty());
}

TEST(Devices, ListsEveryGpu) {
  const nlohmann::json devices =
      DevicesAsJson(STAGECOACH_EMULATED_CUDA, "gpus=4,memory=64MB")["devices"];
  ASSERT_THAT(devices, SizeIs(5));
  for (int gpu = 0; gpu < 4; ++gpu) {
    const nlohmann::json& device = devices[static_cast<size_t>(gpu) + 1];
    EXPECT_EQ(device["kind"], "cuda");
    EXPECT_EQ(device["gpu"], gpu);
    EXPECT_EQ(device["name"], "CUDA stand-in");
    EXPECT_EQ(device["memory_bytes"], 64'000'000);
    EXPECT_EQ(device["available_memory_bytes"], 64'000'000);
    EXPECT_EQ(device["compute_capability"], "9.0");
    EXPECT_EQ(device["multiprocessors"], 4);
    EXPECT_EQ(device["bus_id"], absl::StrCat("0000:0", gpu + 1, ":00.0"));
  }
}

TEST(Devices, TellsTheVersionsOfAllLibraries) {
  const nlohmann::json cuda = DevicesAsJson(STAGECOACH_EMULATED_CUDA, "gpus=1")["cuda"];
  EXPECT_EQ(cuda["usable"], true);
  EXPECT_TRUE(cuda["reason"].is_null());
  EXPECT_EQ(cuda["backend"], STAGECOACH_EMULATED_CUDA);
  EXPECT_THAT(cuda["driver"].get<std::string>(), HasSubstr("CUDA "));
  for (const char* library : {"runtime", "cublaslt", "cudnn", "nccl"}) {
    EXPECT_THAT(cuda[library].get<std::string>(), HasSubstr(".")) << library;
  }
  EXPECT_TRUE(cuda["no_cudnn"].is_null());
}

TEST(Devices, TextHasALineForEachGpu) {
  const Finished run = Devices(STAGECOACH_EMULATED_CUDA, "gpus=2,memory=64MB");
  EXPECT_THAT(run.out, AllOf(HasSubstr("0  CUDA stand-in  64.0 MB"), HasSubstr("1  CUDA stand-in"),
                             HasSubstr("0000:02:00.0"), HasSubstr("cuBLASLt "), HasSubstr("NCCL "),
                             Not(HasSubstr("No CUDA devices"))));
}

TEST(Devices, TellsWhoseAttentionAndConvolutionsThereAre) {
  EXPECT_THAT(Devices(STAGECOACH_EMULATED_CUDA, "gpus=1").out,
              AllOf(HasSubstr("Attention: kernels of the backend or of cuDNN 9.19.0, "),
                    HasSubstr("Convolutions: cuDNN 9.19.0\n")));
  EXPECT_THAT(Devices(STAGECOACH_EMULATED_CUDA, "gpus=1,cudnn_version=91002").out,
              AllOf(HasSubstr("(no cuDNN: cuDNN 9.10.2 is older than 9.19)"),
                    HasSubstr("Convolutions: none but of kernel 1, until cuDNN 9.19")));
}

TEST(Devices, WithoutAGpuItSaysSo) {
  EXPECT_THAT(ReasonWithout(STAGECOACH_EMULATED_CUDA, "gpus=0"),
              AllOf(HasSubstr("sees no GPU"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(Devices, WithoutADriverItSaysWhichOneToInstall) {
  EXPECT_THAT(ReasonWithout(STAGECOACH_EMULATED_CUDA, "driver=0"),
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("install one for CUDA")));
}

TEST(Devices, WithoutADriverTheLibrariesAreListedAllTheSame) {
  const nlohmann::json cuda = DevicesAsJson(STAGECOACH_EMULATED_CUDA, "driver=0")["cuda"];
  EXPECT_TRUE(cuda["driver"].is_null());
  EXPECT_FALSE(cuda["runtime"].is_null());
  EXPECT_THAT(Devices(STAGECOACH_EMULATED_CUDA, "driver=0").out, HasSubstr("driver: none"));
}

TEST(Devices, WithoutTheBackendItNamesTheFile) {
  EXPECT_THAT(ReasonWithout("/no/such/library.so", ""),
              AllOf(HasSubstr("/no/such/library.so"), HasSubstr(kLibrary)));
  const nlohmann::json cuda = DevicesAsJson("/no/such/library.so", "")["cuda"];
  for (const char* field : {"backend", "driver", "runtime", "cublaslt", "cudnn", "nccl"}) {
    EXPECT_TRUE(cuda[field].is_null()) << field;
  }
}

TEST(Devices, AFileThatIsNoLibraryIsNamed) {
  const std::string path =
      engine::WriteTestFile(engine::TestDirectory(), "libstagecoach_cuda.so", "not a library");
  EXPECT_THAT(ReasonWithout(path, ""), AllOf(HasSubstr(path), HasSubstr(kLibrary)));
}

TEST(Devices, AnotherLibraryIsRefused) {
  EXPECT_THAT(ReasonWithout("libm.so.6", ""),
              AllOf(HasSubstr("libm.so.6 is not Stagecoach's CUDA backend"), HasSubstr(kLibrary)));
}

TEST(Devices, JsonIsValidWhateverThePathHolds) {
  const nlohmann::json cuda = DevicesAsJson("/no/\xff/library.so", "")["cuda"];
  EXPECT_THAT(cuda["reason"].get<std::string>(), HasSubstr("/library.so"));
}

}  // namespace
}  // namespace stagecoach::tools
