#include "tests/testing/cuda/gpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/sanitizers.h"

namespace stagecoach::testing::cuda {
namespace {

constexpr std::byte kRedZoneByte{0xc5};
// The unit that is made accessible and inaccessible together: pages large enough, if the system
// provides them, to make this cheap for every operation.
constexpr int64_t kGranuleBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void FillRedZone(std::byte* begin, std::byte* end) { std::fill(begin, end, kRedZoneByte); }

void CheckRedZone(const std::byte* begin, const std::byte* end, const char* what) {
  const std::byte* const written =
      std::find_if(begin, end, [](std::byte byte) { return byte != kRedZoneByte; });
  STAGECOACH_CHECK(written == end, absl::StrCat("something wrote ", what, ", ", written - begin,
                                                " bytes into its red zone of ", end - begin));
}

// The range has twice the bytes, because red zones do not count as the GPU's memory.
GpuMemory::GpuMemory(int64_t bytes)
    : bytes_(bytes), range_bytes_(RoundUp(2 * bytes + (int64_t{16} << 20), kGranuleBytes)) {
  mapping_ =
      mmap(nullptr, MappingBytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  STAGECOACH_CHECK(mapping_ != MAP_FAILED, "no address space for the memory of a GPU");
  const int64_t begin = reinterpret_cast<int64_t>(mapping_);
  base_ = static_cast<std::byte*>(mapping_) + (RoundUp(begin, kGranuleBytes) - begin);
  madvise(base_, static_cast<size_t>(range_bytes_), MADV_HUGEPAGE);
}

size_t GpuMemory::MappingBytes() const { return static_cast<size_t>(range_bytes_ + kGranuleBytes); }

GpuMemory::~GpuMemory() {
  Unpoison(base_, static_cast<size_t>(end_));
  munmap(mapping_, MappingBytes());
}

void GpuMemory::SetProtection(int64_t begin, int64_t end, int protection) {
  if (begin == end) return;
  STAGECOACH_CHECK(mprotect(base_ + begin, static_cast<size_t>(end - begin), protection) == 0,
                   "cannot change the protection of a GPU's memory");
}

void GpuMemory::Open() {
  if (!open_) SetProtection(0, RoundUp(end_, kGranuleBytes), PROT_READ | PROT_WRITE);
  open_ = true;
}

void GpuMemory::Close() {
  if (open_) SetProtection(0, RoundUp(end_, kGranuleBytes), PROT_NONE);
  open_ = false;
}

int64_t GpuMemory::TakeRange(int64_t bytes) {
  const auto fitting = std::find_if(free_.begin(), free_.end(),
                                    [bytes](const auto& range) { return range.second >= bytes; });
  if (fitting != free_.end()) {
    const auto [begin, free_bytes] = *fitting;
    free_.erase(fitting);
    if (free_bytes > bytes) free_[begin + bytes] = free_bytes - bytes;
    return begin;
  }
  if (end_ + bytes > range_bytes_) return -1;
  const int64_t begin = end_;
  const int64_t accessible = RoundUp(end_, kGranuleBytes);
  end_ += bytes;
  if (open_) SetProtection(accessible, RoundUp(end_, kGranuleBytes), PROT_READ | PROT_WRITE);
  return begin;
}

void GpuMemory::GiveRange(int64_t begin, int64_t bytes) {
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_[begin] = bytes;
}

void* GpuMemory::Allocate(int64_t bytes) {
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), kAlignment);
  if (rounded > free_bytes()) return nullptr;
  const int64_t begin = TakeRange(rounded + 2 * kAlignment);
  if (begin < 0) return nullptr;
  std::byte* const range = base_ + begin;
  const size_t range_bytes = static_cast<size_t>(rounded + 2 * kAlignment);
  std::byte* const data = range + kAlignment;
  Unpoison(range, range_bytes);
  FillRedZone(range, data);
  std::memset(data, kPoisonByte, static_cast<size_t>(bytes));
  FillRedZone(data + bytes, range + range_bytes);
  Poison(range, range_bytes);
  Unpoison(data, static_cast<size_t>(bytes));
  live_[begin + kAlignment] = bytes;
  used_bytes_ += rounded;
  return data;
}

bool GpuMemory::Free(void* address) {
  const auto found = live_.find(static_cast<std::byte*>(address) - base_);
  if (found == live_.end()) return false;
  const int64_t bytes = found->second;
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), kAlignment);
  std::byte* const data = base_ + found->first;
  std::byte* const end = data + rounded + kAlignment;
  Unpoison(data - kAlignment, static_cast<size_t>(rounded + 2 * kAlignment));
  CheckRedZone(data - kAlignment, data, "before an allocation of device memory");
  CheckRedZone(data + bytes, end, "after an allocation of device memory");
  std::memset(data, kPoisonByte, static_cast<size_t>(bytes));
  Poison(data - kAlignment, static_cast<size_t>(rounded + 2 * kAlignment));
  GiveRange(found->first - kAlignment, rounded + 2 * kAlignment);
  live_.erase(found);
  used_bytes_ -= rounded;
  return true;
}

bool GpuMemory::Contains(const void* address, int64_t bytes) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  if (byte < base_ || byte >= base_ + end_ || bytes < 0) return false;
  const int64_t begin = byte - base_;
  const auto after = live_.upper_bound(begin);
  if (after == live_.begin()) return false;
  const auto [live_begin, live_bytes] = *std::prev(after);
  return begin + bytes <= live_begin + live_bytes;
}

}  // namespace stagecoach::testing::cuda
