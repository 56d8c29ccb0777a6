#ifndef STAGECOACH_TESTS_TESTING_CUDA_GPU_MEMORY_H_
#define STAGECOACH_TESTS_TESTING_CUDA_GPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>

namespace stagecoach::testing::cuda {

// Fills memory that has not been written yet: as a float of any type it is NaN.
inline constexpr int kPoisonByte = 0xff;

// The memory of one GPU: a range of addresses in which allocations lie between red zones. Bytes of
// an allocation are poisoned when it is made and when it ends. Not thread-safe.
class GpuMemory {
 public:
  explicit GpuMemory(int64_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  int64_t bytes() const { return bytes_; }
  int64_t free_bytes() const { return bytes_ - used_bytes_; }
  int64_t allocations() const { return static_cast<int64_t>(live_.size()); }

  // Makes the memory accessible, from Open to Close only. Allocate and Free need it open.
  void Open();
  void Close();

  // Returns a multiple of 256; null if there is no room.
  void* Allocate(int64_t bytes);
  // Returns false if `address` is no live allocation. Aborts if something wrote next to it.
  bool Free(void* address);
  // Returns true if all these bytes lie in one live allocation.
  bool Contains(const void* address, int64_t bytes) const;

 private:
  static constexpr int64_t kAlignment = 256;  // also of each red zone, in bytes

  size_t MappingBytes() const;
  void SetProtection(int64_t begin, int64_t end, int protection);
  int64_t TakeRange(int64_t bytes);
  void GiveRange(int64_t begin, int64_t bytes);

  const int64_t bytes_;
  const int64_t range_bytes_;
  void* mapping_ = nullptr;
  std::byte* base_ = nullptr;  // of the range, within the mapping
  bool open_ = false;
  int64_t used_bytes_ = 0;
  int64_t end_ = 0;                  // of the part that has ever been used, in bytes from base_
  std::map<int64_t, int64_t> free_;  // begin to bytes, within that part, never adjacent
  std::map<int64_t, int64_t> live_;  // begin of what was allocated, to bytes
};

// FillRedZone fills the bytes from `begin` to `end`; CheckRedZone aborts unless they still have
// that content, and its message says with `what` what they lie next to.
void FillRedZone(std::byte* begin, std::byte* end);
void CheckRedZone(const std::byte* begin, const std::byte* end, const char* what);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_GPU_MEMORY_H_
