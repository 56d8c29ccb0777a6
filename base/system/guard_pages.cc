#include "base/system/guard_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace stagecoach::base {

absl::StatusOr<GuardPages> GuardPages::Create(int64_t bytes) {
  STAGECOACH_CHECK(bytes > 0, "an area has bytes");
  const auto size = static_cast<size_t>(bytes);
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return absl::UnavailableError("no addresses are left");
  // Huge pages would show a touch on neighboring pages too. This fails if the system has none.
  madvise(data, size, MADV_NOHUGEPAGE);
  GuardPages memory(static_cast<std::byte*>(data), size);
  bool tells = !memory.TakeTouched(bytes);
  *static_cast<volatile std::byte*>(memory.data_);
  tells = tells && memory.TakeTouched(bytes) && !memory.TakeTouched(bytes);
  if (!tells) return absl::UnavailableError("the system does not say which pages are touched");
  return memory;
}

GuardPages::~GuardPages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool GuardPages::TakeTouched(int64_t bytes) {
  // A private page is in memory from the first access on, even a read.
  std::array<unsigned char, 4096> pages;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = std::min(static_cast<size_t>(bytes), bytes_);
  const size_t step = pages.size() * page;
  bool touched = false;
  for (size_t begin = 0; begin < size && !touched; begin += step) {
    const size_t part = std::min(step, size - begin);
    if (mincore(data_ + begin, part, pages.data()) != 0) return true;
    const size_t count = (part + page - 1) / page;
    touched = std::any_of(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(count),
                          [](unsigned char state) { return (state & 1U) != 0; });
  }
  if (touched) madvise(data_, bytes_, MADV_DONTNEED);
  return touched;
}

}  // namespace stagecoach::base
