#ifndef STAGECOACH_TESTS_TESTING_CUDA_SHARED_REGION_H_
#define STAGECOACH_TESTS_TESTING_CUDA_SHARED_REGION_H_

#include <cstddef>

namespace stagecoach::testing::cuda {

// The dynamic shared memory of the running block. It ends, up to alignment, where inaccessible
// pages begin, so that reads beyond its end are noticed even without a sanitizer.
class SharedRegion {
 public:
  static constexpr size_t kMaxBytes = size_t{227} << 10;

  SharedRegion();
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  // Prepares for blocks with this many bytes, at most kMaxBytes.
  void Fit(size_t bytes);
  // Poisons the bytes.
  void StartBlock();
  // Aborts if something wrote next to the bytes.
  void EndBlock();
  unsigned char* data() const { return reinterpret_cast<unsigned char*>(data_); }

 private:
  static constexpr size_t kBytes = size_t{256} << 10;  // before the guarded pages
  static constexpr size_t kAlignment = 16;
  static constexpr size_t kRedZoneBytes = 256;

  std::byte* begin_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_SHARED_REGION_H_
