#include "kernels/cpu/runtime/register_peak.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Counts the instructions of each multiplying kind in this program's functions Spin...
std::map<std::string, int> Multiplications() {
  std::map<std::string, int> counts;
  FILE* const lines =
      popen(absl::StrCat("objdump -d -C --no-show-raw-insn /proc/", getpid(), "/exe").c_str(), "r");
  EXPECT_NE(lines, nullptr);
  if (lines == nullptr) return counts;
  char buffer[4096];
  std::string function;
  while (std::fgets(buffer, sizeof buffer, lines) != nullptr) {
    const std::string line = buffer;
    if (absl::EndsWith(line, ">:\n")) {
      const size_t name = line.find("::Spin");
      function = name == std::string::npos ? "" : line.substr(name + 2, line.rfind('(') - name - 2);
    }
    if (function.empty()) continue;
    for (const char* instruction : {"vfmadd", "vdpbf16ps", "mulps", "mulss"}) {
      const size_t at = line.find(instruction);
      if (at == std::string::npos) continue;
      const std::string name = line.substr(at, line.find(' ', at) - at);
      const std::string register_type = line.substr(line.rfind('%') + 1, 3);
      ++counts[absl::StrCat(function, ": ", name, " ", register_type)];
    }
  }
  EXPECT_EQ(pclose(lines), 0) << "objdump comes with the compiler";
  return counts;
}

// A compiler may turn vectors into scalars, which are not as fast everywhere.
TEST(RegisterPeak, IsOfTheWidestInstructions) {
  double (*volatile measure)(int, Precision) = RegisterPeakFlops;  // so that it is linked
  ASSERT_NE(measure, nullptr);
  EXPECT_THAT(
      Multiplications(),
      ElementsAre(Pair("Spin128: mulps xmm", 12), Pair("Spin256: vfmadd213ps ymm", 12),
                  Pair("Spin512: vfmadd213ps zmm", 12), Pair("SpinBfloat16: vdpbf16ps zmm", 12)));
}

}  // namespace
}  // namespace stagecoach::kernels
