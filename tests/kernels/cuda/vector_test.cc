// Checks that one instruction moves a vector: moved as bytes, its values would be the same and the
// kernels several times slower, which no test of values shows.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Returns the instructions of each kernel that read or write global memory.
std::map<std::string, std::vector<std::string>> MemoryInstructions(const std::string& ptx) {
  std::map<std::string, std::vector<std::string>> found;
  std::string kernel;
  for (const absl::string_view line : absl::StrSplit(ptx, '\n')) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar("\t ("), absl::SkipEmpty());
    if (words.size() > 2 && words[1] == ".entry") kernel = words[2];
    if (words.empty()) continue;
    const bool is_memory = absl::StartsWith(words[0], "ld.") || absl::StartsWith(words[0], "st.");
    if (is_memory && !absl::StrContains(words[0], "param")) found[kernel].push_back(words[0]);
  }
  return found;
}

TEST(Vector, IsMovedByOneInstruction) {
  ASSERT_OK_AND_ASSIGN(const std::string ptx, base::ReadFile(STAGECOACH_VECTOR_PTX, 1 << 20));
  auto found = MemoryInstructions(ptx);
  EXPECT_THAT(found, SizeIs(6));
  const auto reads = AllOf(StartsWith("ld.global"), HasSubstr(".v4.")),
             writes = AllOf(StartsWith("st.global"), HasSubstr(".v4."));
  for (const char* const kernel : {"Float32x4", "Float32x4Streaming", "Bfloat16x8",
                                   "Bfloat16x8Streaming", "Bfloat16x8OfRow"}) {
    EXPECT_THAT(found[kernel], ElementsAre(reads, writes)) << kernel;
  }
  EXPECT_THAT(found["Bfloat16x4"], ElementsAre(AllOf(StartsWith("ld.global"), HasSubstr(".v2.")),
                                               AllOf(StartsWith("st.global"), HasSubstr(".v2."))));
}

}  // namespace
}  // namespace stagecoach::kernels
