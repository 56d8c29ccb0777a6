#ifndef STAGECOACH_TESTS_TESTING_CUDA_RAW_DEVICE_H_
#define STAGECOACH_TESTS_TESTING_CUDA_RAW_DEVICE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

// Just enough of a device for tests of single kernels: the runtime's calls, without the backend's
// own classes. A failing call fails the test.
namespace stagecoach::testing::cuda {

// A stream of the current GPU.
class RawStream {
 public:
  RawStream() {
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), cudaSuccess);
  }
  ~RawStream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  operator cudaStream_t() const { return stream_; }
  void Synchronize() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Elements in pinned host memory.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(size_t size) : size_(size) {
    void* address = nullptr;
    EXPECT_EQ(cudaHostAlloc(&address, size * sizeof(T), cudaHostAllocPortable), cudaSuccess);
    data_ = static_cast<T*>(address);
  }
  explicit PinnedArray(const std::vector<T>& values) : PinnedArray(values.size()) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  ~PinnedArray() { EXPECT_EQ(cudaFreeHost(data_), cudaSuccess); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  T* data() const { return data_; }
  size_t bytes() const { return size_ * sizeof(T); }
  std::vector<T> values() const { return std::vector<T>(data_, data_ + size_); }

 private:
  size_t size_;
  T* data_ = nullptr;
};

// Elements in the memory of the current GPU.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    void* address = nullptr;
    EXPECT_EQ(cudaMalloc(&address, size * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(address);
  }
  // Copies the values in the stream's order; returns when that is done.
  DeviceArray(cudaStream_t stream, const std::vector<T>& values) : DeviceArray(values.size()) {
    const PinnedArray<T> host(values);
    EXPECT_EQ(cudaMemcpyAsync(data_, host.data(), bytes(), cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  ~DeviceArray() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  // Returns the contents once all work of the stream is done.
  std::vector<T> Download(cudaStream_t stream) const {
    const PinnedArray<T> host(size_);
    EXPECT_EQ(cudaMemcpyAsync(host.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return host.values();
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_RAW_DEVICE_H_
