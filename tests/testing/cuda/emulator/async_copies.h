#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_ASYNC_COPIES_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_ASYNC_COPIES_H_

#include <array>
#include <cstddef>
#include <deque>
#include <vector>

namespace stagecoach::testing::cuda {

// The asynchronous copies of one emulated thread, of 16 bytes each. A GPU may read and write at any
// time between a copy's start and the wait for it; this class detects code that depends on the
// actual time.
class AsyncCopies {
 public:
  static constexpr size_t kBytes = 16;

  // Poisons `to`. Reads `from`, or copies zeros.
  void Start(void* to, const void* from, bool reads);
  // Ends a group: of the copies started since the last one, perhaps none.
  void Commit() { ++committed_; }
  // Writes the bytes of all groups but the last `groups`. Returns null, or what is wrong with a
  // copy.
  const char* Wait(size_t groups);
  bool under_way() const { return !copies_.empty(); }
  // The destinations that Wait has written since the last call of ForgetArrived.
  const std::vector<void*>& arrived() const { return arrived_; }
  void ForgetArrived() { arrived_.clear(); }

 private:
  using Bytes = std::array<std::byte, kBytes>;
  struct Copy {
    size_t group;
    void* to;
    const void* from;  // null: zeros
    Bytes bytes;
  };

  std::deque<Copy> copies_;
  std::vector<void*> arrived_;
  size_t committed_ = 0;  // groups
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_ASYNC_COPIES_H_
