#include "tests/testing/cuda/shared_region.h"

#include <sys/mman.h>

#include <cstring>

#include "base/check.h"
#include "tests/testing/cuda/gpu_memory.h"
#include "tests/testing/cuda/sanitizers.h"

namespace stagecoach::testing::cuda {

SharedRegion::SharedRegion() {
  // The second half is never made accessible.
  void* const pages = mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  STAGECOACH_CHECK(pages != MAP_FAILED && mprotect(pages, kBytes, PROT_READ | PROT_WRITE) == 0,
                   "no memory for the shared memory of a block");
  begin_ = static_cast<std::byte*>(pages);
  Fit(0);
}

SharedRegion::~SharedRegion() {
  Unpoison(begin_, kBytes);
  munmap(begin_, 2 * kBytes);
}

void SharedRegion::Fit(size_t bytes) {
  if (data_ != nullptr && bytes == bytes_) return;
  Unpoison(begin_, kBytes);
  bytes_ = bytes;
  std::byte* const end = begin_ + kBytes;
  data_ = end - (bytes + kAlignment - 1) / kAlignment * kAlignment;
  FillRedZone(data_ - kRedZoneBytes, data_);
  FillRedZone(data_ + bytes, end);
  Poison(begin_, kBytes);
  Unpoison(data_, bytes);
}

void SharedRegion::StartBlock() { std::memset(data_, kPoisonByte, bytes_); }

void SharedRegion::EndBlock() {
  std::byte* const end = begin_ + kBytes;
  std::byte* const data_end = data_ + bytes_;
  Unpoison(data_ - kRedZoneBytes, kRedZoneBytes);
  Unpoison(data_end, static_cast<size_t>(end - data_end));
  CheckRedZone(data_ - kRedZoneBytes, data_, "before the shared memory of a block");
  CheckRedZone(data_end, end, "after the shared memory of a block");
  Poison(data_ - kRedZoneBytes, kRedZoneBytes);
  Poison(data_end, static_cast<size_t>(end - data_end));
}

}  // namespace stagecoach::testing::cuda
