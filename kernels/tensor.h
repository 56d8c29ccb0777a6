#ifndef STAGECOACH_KERNELS_TENSOR_H_
#define STAGECOACH_KERNELS_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/types/span.h"

namespace stagecoach::kernels {

enum class DType : uint8_t { kFloat32, kFloat64, kInt32, kBfloat16, kUint8, kFloat16, kInt8 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kBfloat16:
    case DType::kFloat16:  // in files only
      return 2;
    case DType::kUint8:
    case DType::kInt8:  // in files only
      return 1;
    default:
      return 4;
  }
}

// How the elements of images [channels, height, width] follow one another in memory: by channel, or
// by position.
enum class ImageOrder : uint8_t { kChannelsFirst, kChannelsLast };

// Extents of up to four dimensions, outermost first; elements are contiguous and row-major, unless
// the last three are those of images whose channels are last in memory: then element [c, h, w] lies
// where [h, w, c] would. A shape without dimensions has a single value. Regular value type.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  // Pre-condition: at most kMaxRank extents, each >= 0.
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(absl::Span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t dim(int i) const { return dims_[static_cast<size_t>(i)]; }
  int64_t elements() const;
  // Returns this shape with one more, outermost dimension. Pre-condition: rank() < kMaxRank.
  Shape Batched(int64_t rows) const;
  // Returns the order of the last three extents.
  ImageOrder image_order() const { return order_; }
  // Returns the same extents in another order. Pre-condition: with channels last, rank() >= 3.
  Shape InOrder(ImageOrder order) const;

  std::string ToString() const;  // "[64, 784]"

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
  ImageOrder order_ = ImageOrder::kChannelsFirst;
};

// A view of device memory: never owns, cheap to copy. An empty tensor (no data) stands for an
// absent one.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  int64_t elements() const { return shape.elements(); }
  int64_t bytes() const { return elements() * SizeOf(dtype); }
  // Return the elements as a typed pointer. Pre-condition: T matches dtype.
  float* f32() const { return static_cast<float*>(data); }
  double* f64() const { return static_cast<double*>(data); }
  int32_t* i32() const { return static_cast<int32_t*>(data); }
  uint16_t* bf16() const { return static_cast<uint16_t*>(data); }  // kernels/bfloat16.h
};

inline Tensor Float32(void* data, const Shape& shape) { return {data, DType::kFloat32, shape}; }

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_TENSOR_H_
