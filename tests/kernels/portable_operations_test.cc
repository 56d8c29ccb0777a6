#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"

// Properties of a portable build. All tests of operations run once for each compilation
// (CMakeLists.txt), which tests what each computes.
namespace stagecoach::kernels {
namespace {

std::set<std::string> FlagsOfThisProcessor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

bool HasAll(const std::set<std::string>& flags, absl::Span<const absl::string_view> needed) {
  for (const absl::string_view flag : needed) {
    if (!flags.contains(std::string(flag))) return false;
  }
  return true;
}

TEST(PortableOperations, AreTheWidestThatTheProcessorHasAndTheVariableAllows) {
  const std::set<std::string> flags = FlagsOfThisProcessor();
  const bool v3 = HasAll(flags, {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"});
  const bool v4 = v3 && HasAll(flags, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
  const char* const variable = std::getenv("ONEDNN_MAX_CPU_ISA");
  const absl::string_view most = variable == nullptr ? "ALL" : variable;
  const char* const expected = v4 && most == "ALL"     ? "x86-64-v4"
                               : v3 && most != "SSE41" ? "x86-64-v3"
                                                       : "x86-64-v2";
  EXPECT_STREQ(CpuOperationsArch(), expected);
}

}  // namespace
}  // namespace stagecoach::kernels
