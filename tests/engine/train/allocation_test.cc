// Steady-state training allocates nothing, and planning it takes no memory for its samples. This is
// a program of its own because it replaces the C library's allocator to count the calls. Calls from
// oneDNN do not count: its products take a packing buffer, and the execution of a primitive builds
// a small table, which no caller can prevent. Nor do those of the OpenMP runtime below it.
#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/runtime/stage/profile.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
#define STAGECOACH_TEST_HAS_SANITIZER 1
#else
#define STAGECOACH_TEST_HAS_SANITIZER 0
#endif

namespace {

// The calls to the allocator below. These are plain globals: it runs before any constructor.
constinit std::atomic<bool> counting{false};
constinit std::atomic<size_t> num_calls{0};     // while counting
constinit std::atomic<int64_t> taken_bytes{0};  // by these calls
constinit std::array<void*, 1 << 16> callers{};
constinit std::atomic<int64_t> live_bytes{0};

#if !STAGECOACH_TEST_HAS_SANITIZER

void* NoteTaken(void* memory, void* caller) {
  if (memory == nullptr) return memory;
  live_bytes.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)));
  if (counting.load()) {
    const size_t call = num_calls.fetch_add(1);
    taken_bytes.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)));
    if (call < callers.size()) callers[call] = caller;
  }
  return memory;
}

void NoteGiven(void* memory) {
  if (memory != nullptr) live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)));
}

void* OrThrow(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

#endif

}  // namespace

#if !STAGECOACH_TEST_HAS_SANITIZER

// The C library's own functions, under the names that remain when others replace them.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);

void* malloc(size_t bytes) noexcept {
  return NoteTaken(__libc_malloc(bytes), __builtin_return_address(0));
}
void* calloc(size_t count, size_t bytes) noexcept {
  return NoteTaken(__libc_calloc(count, bytes), __builtin_return_address(0));
}
void* realloc(void* memory, size_t bytes) noexcept {
  const auto before = static_cast<int64_t>(malloc_usable_size(memory));
  void* const moved = __libc_realloc(memory, bytes);
  if (moved != nullptr || bytes == 0) live_bytes.fetch_sub(before);
  return NoteTaken(moved, __builtin_return_address(0));
}
void* memalign(size_t alignment, size_t bytes) noexcept {
  return NoteTaken(__libc_memalign(alignment, bytes), __builtin_return_address(0));
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return NoteTaken(__libc_memalign(alignment, bytes), __builtin_return_address(0));
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  *memory = NoteTaken(__libc_memalign(alignment, bytes), __builtin_return_address(0));
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) noexcept {
  NoteGiven(memory);
  __libc_free(memory);
}
}  // extern "C"

// Replace the language's own operators, so that the caller is the code that asked for an object and
// not the C++ library. The other forms of delete end in free.
void* operator new(size_t bytes) {
  return OrThrow(NoteTaken(__libc_malloc(bytes), __builtin_return_address(0)));
}
void* operator new[](size_t bytes) {
  return OrThrow(NoteTaken(__libc_malloc(bytes), __builtin_return_address(0)));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return NoteTaken(__libc_malloc(bytes), __builtin_return_address(0));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return NoteTaken(__libc_malloc(bytes), __builtin_return_address(0));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return OrThrow(NoteTaken(__libc_memalign(static_cast<size_t>(alignment), bytes),
                           __builtin_return_address(0)));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return OrThrow(NoteTaken(__libc_memalign(static_cast<size_t>(alignment), bytes),
                           __builtin_return_address(0)));
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete[](void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
void operator delete[](void* memory, size_t) noexcept { free(memory); }

#endif

namespace stagecoach::engine {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Le;

// Returns the file that holds an address of code, and where in it, for addr2line.
std::string Locate(const void* code) {
  Dl_info info;
  if (dladdr(code, &info) == 0 || info.dli_fname == nullptr) return "unknown code";
  const auto offset =
      reinterpret_cast<uintptr_t>(code) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  return absl::StrCat(info.dli_fname, " +0x", absl::Hex(offset));
}

// Returns who called the allocator while counting.
std::vector<std::string> Callers() {
  std::vector<std::string> located;
  for (size_t i = 0; i < std::min(num_calls.load(), callers.size()); ++i) {
    located.push_back(Locate(callers[i]));
  }
  return located;
}

std::vector<std::string> CallersThatCount() {
  std::vector<std::string> located;
  for (std::string& caller : Callers()) {
    const bool excepted =
        absl::StrContains(caller, "libdnnl") || absl::StrContains(caller, "libgomp");
    if (!excepted) located.push_back(std::move(caller));
  }
  return located;
}

class Allocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (STAGECOACH_TEST_HAS_SANITIZER) GTEST_SKIP() << "the sanitizer has an allocator of its own";
    num_calls = 0;
    taken_bytes = 0;
  }
};

TEST_F(Allocation, OfThisProgramIsSeen) {
  counting = true;
  const auto number = std::make_unique<int>(5);
  counting = false;
  EXPECT_EQ(CallersThatCount().size(), 1);
}

TEST_F(Allocation, LiveBytesRiseAndFall) {
  const int64_t before = live_bytes;
  auto bytes = std::make_unique<char[]>(1000);
  EXPECT_GE(live_bytes, before + 1000);
  bytes.reset();
  EXPECT_EQ(live_bytes, before);
}

TEST_F(Allocation, OfAnAnalysisIsLessThanAByteForEachRow) {
  constexpr int64_t kRows = int64_t{1} << 24;
  for (const LossFactory& loss : {SoftmaxCrossEntropy(), MeanSquaredError()}) {
    Model model = SmallModel();
    model.loss = loss;
    taken_bytes = 0;
    counting = true;
    const absl::StatusOr<ModelProfile> profile = AnalyzeModel(model, {.micro_batch_rows = kRows});
    counting = false;
    ASSERT_OK(profile);
    EXPECT_GT(taken_bytes, 0);
    EXPECT_LT(taken_bytes, kRows);
  }
}

using Run = std::tuple<int /*devices*/, const char* /*schedule*/, float /*clip norm*/>;

class SteadyStateSteps : public Allocation, public ::testing::WithParamInterface<Run> {
 protected:
  static constexpr int64_t kBatchRows = 64;
  static constexpr int kSteps = 4;

  void SetUp() override {
    Allocation::SetUp();
    if (IsSkipped()) return;
    const auto& [devices, schedule, clip_norm] = GetParam();
    TrainerOptions options{.trace = true};
    options.optimizer.clip_norm = clip_norm;
    const Model model = SmallModel();
    trainer_ = MakeTrainer(model, EvenPlan(model, devices, schedule, 4, kBatchRows / 4), options);
    for (int step = 0; step < 2; ++step) Step();
  }

  void Step() { ok_ = ok_ && trainer_->Step(*data_, rows_).ok(); }

  const std::shared_ptr<const Dataset> data_ = SmallData(kBatchRows);
  const std::vector<int64_t> rows_ = Rows(0, kBatchRows);
  std::unique_ptr<Trainer> trainer_;
  bool ok_ = true;
};

TEST_P(SteadyStateSteps, AllocateNothing) {
  counting = true;
  for (int step = 0; step < kSteps; ++step) Step();
  counting = false;
  ASSERT_TRUE(ok_);
  ASSERT_LT(num_calls, callers.size());
  EXPECT_THAT(CallersThatCount(), IsEmpty());
}

// oneDNN frees whatever it allocates.
TEST_P(SteadyStateSteps, DoNotGrowTheHeap) {
  std::array<int64_t, kSteps> live{};
  const int64_t before = live_bytes;
  for (int64_t& bytes : live) {
    Step();
    bytes = live_bytes;
  }
  ASSERT_TRUE(ok_);
  EXPECT_THAT(live, Each(Le(before)));
}

std::string NameOf(const ::testing::TestParamInfo<Run>& test) {
  const auto& [devices, schedule, clip_norm] = test.param;
  std::string name =
      absl::StrCat("Devices", devices, "_", schedule, clip_norm > 0.0F ? "_clipping" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Runs, SteadyStateSteps,
                         ::testing::Combine(::testing::Values(1, 2),
                                            ::testing::Values("gpipe", "1f1b", "dualpipe-v"),
                                            ::testing::Values(0.0F, 0.01F)),
                         NameOf);

}  // namespace
}  // namespace stagecoach::engine
