#include "tests/kernels/ops/op_harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::testing {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kFill{0xFF};

template <typename T>
T Take(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

template <typename T>
absl::Span<const std::byte> AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<double> NumbersOf(const std::vector<std::byte>& bytes) {
  std::vector<double> numbers;
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    numbers.push_back(static_cast<double>(value));
  }
  return numbers;
}

struct Bfloat16 {
  explicit operator double() const { return kernels::FromBfloat16(bits); }
  uint16_t bits;
};

std::vector<double> Numbers(DType type, const std::vector<std::byte>& bytes) {
  switch (type) {
    case DType::kFloat32:
      return NumbersOf<float>(bytes);
    case DType::kFloat64:
      return NumbersOf<double>(bytes);
    case DType::kBfloat16:
      return NumbersOf<Bfloat16>(bytes);
    case DType::kInt32:
      return NumbersOf<int32_t>(bytes);
    case DType::kUint8:
      return NumbersOf<uint8_t>(bytes);
    case DType::kFloat16:
    case DType::kInt8:
      break;
  }
  base::PrintAndAbort(__FILE__, __LINE__, "Numbers", "a type that is in files alone");
}

// Returns the values of images whose channels are first, or of any other shape, in the order of the
// shape's elements in memory; or the reverse.
template <typename T>
std::vector<T> Reordered(const Shape& shape, absl::Span<const T> values, bool back) {
  std::vector<T> reordered(values.begin(), values.end());
  if (shape.image_order() == kernels::ImageOrder::kChannelsFirst) return reordered;
  const int rank = shape.rank();
  const int64_t channels = shape.dim(rank - 3), area = shape.dim(rank - 2) * shape.dim(rank - 1);
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const int64_t sample = i / (channels * area), c = i / area % channels, place = i % area;
    const auto first = static_cast<size_t>(i);
    const auto last = static_cast<size_t>((sample * area + place) * channels + c);
    reordered[back ? first : last] = values[back ? last : first];
  }
  return reordered;
}

}  // namespace

// An accelerator's own memory has no guard, which would hide reads and writes beyond the end from
// CUDA's stand-in.
OpBench::OpBench(const OpVariant& variant, Addresses addresses)
    : device_(variant.create_device()),
      offset_(addresses == Addresses::kUnaligned ||
                      (addresses == Addresses::kAny && variant.unaligned)
                  ? 1
                  : 0),
      guard_bytes_(device_->memory_is_host() ? kGuardBytes : 0) {}

OpBench::~OpBench() {
  Run([](kernels::Stream&) { return absl::OkStatus(); });
  for (const Guarded& guarded : memory_) {
    if (guard_bytes_ == 0) break;
    const std::byte* const guard = guarded.buffer.data() + guarded.bytes;
    EXPECT_TRUE(std::all_of(guard, guard + guard_bytes_, [](std::byte b) { return b == kFill; }))
        << "an operation wrote beyond the end of a tensor of " << guarded.bytes << " bytes";
  }
}

void OpBench::CheckCreated(const absl::Status& status) { STAGECOACH_CHECK_OK(status); }

std::byte* OpBench::Allocate(int64_t bytes, absl::Span<const std::byte> values, int64_t offset) {
  const int64_t total = offset + bytes + guard_bytes_;
  memory_.push_back({Take(device_->Allocate(total)), offset + bytes});
  std::vector<std::byte> contents(static_cast<size_t>(total), kFill);
  std::copy(values.begin(), values.end(), contents.begin() + offset);
  std::byte* const memory = memory_.back().buffer.data();
  if (total > 0) contents_.push_back({memory, std::move(contents)});
  return memory + offset;
}

Tensor OpBench::Operand(const Shape& shape, absl::Span<const float> values) {
  const DType type = device_->activation_type();
  STAGECOACH_CHECK(shape.elements() == std::ssize(values),
                   absl::StrCat(values.size(), " values for the shape ", shape.ToString()));
  const int64_t offset_bytes = offset_ * SizeOf(type);
  const std::vector<float> reordered = Reordered(shape, values, /*back=*/false);
  if (type == DType::kFloat32) return {Copied(AsBytes(reordered), offset_bytes), type, shape};
  std::vector<uint16_t> rounded;
  for (const float value : reordered) rounded.push_back(kernels::ToBfloat16(value));
  return {Copied(AsBytes(rounded), offset_bytes), type, shape};
}

Tensor OpBench::Result(const Shape& shape) {
  const DType type = device_->activation_type();
  const int64_t offset_bytes = offset_ * SizeOf(type);
  return {Allocate(shape.elements() * SizeOf(type), {}, offset_bytes), type, shape};
}

Tensor OpBench::Floats(const Shape& shape, absl::Span<const float> values) {
  STAGECOACH_CHECK(shape.elements() == std::ssize(values),
                   absl::StrCat(values.size(), " values for the shape ", shape.ToString()));
  return {Copied(AsBytes(std::vector<float>(values.begin(), values.end()))), DType::kFloat32,
          shape};
}

Tensor OpBench::Integers(const Shape& shape, absl::Span<const int32_t> values) {
  return {Copied(AsBytes(std::vector<int32_t>(values.begin(), values.end()))), DType::kInt32,
          shape};
}

Tensor OpBench::ResultOf(DType type, const Shape& shape) {
  return {Allocate(shape.elements() * SizeOf(type)), type, shape};
}

std::byte* OpBench::Workspace(int64_t bytes) { return Allocate(bytes); }

void OpBench::Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work) {
  int64_t bytes = 0;
  for (const Contents& contents : contents_) bytes += std::ssize(contents.bytes);
  const kernels::HostBuffer staging = Take(device_->AllocateHost(bytes));
  kernels::Stream& stream = device_->stream();
  const auto write_contents = [&]() -> absl::Status {
    std::byte* from = staging.data();
    for (const Contents& contents : contents_) {
      std::copy(contents.bytes.begin(), contents.bytes.end(), from);
      RETURN_IF_ERROR(stream.CopyFromHost(contents.to, from, std::ssize(contents.bytes)));
      from += contents.bytes.size();
    }
    return absl::OkStatus();
  };
  absl::Status status;
  stream.Run([&] {
    status = write_contents();
    if (status.ok()) status = work(stream);
    status.Update(
        stream.Finish(base::Deadline::After(absl::Minutes(1)), [] { return absl::OkStatus(); }));
  });
  contents_.clear();
  EXPECT_OK(status);
}

std::vector<std::byte> OpBench::Bytes(const Tensor& tensor) {
  if (tensor.empty() || tensor.bytes() == 0) return {};
  const kernels::HostBuffer staging = Take(device_->AllocateHost(tensor.bytes()));
  Run([&](kernels::Stream& stream) {
    return stream.CopyToHost(staging.data(), tensor.data, tensor.bytes());
  });
  return {staging.data(), staging.data() + staging.bytes()};
}

OpResults ResultsOn(const OpBackend& backend, Addresses addresses, OpRun run) {
  std::vector<std::vector<std::byte>> first;
  OpResults results;
  for (const OpVariant& variant : backend.variants) {
    SCOPED_TRACE(variant.name);
    OpBench bench(variant, addresses);
    const std::vector<Tensor> tensors = run(bench);
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<std::byte> bytes = bench.Bytes(tensors[i]);
      if (&variant == &backend.variants.front()) {
        results.push_back(
            Reordered<double>(tensors[i].shape, Numbers(tensors[i].dtype, bytes), true));
        first.push_back(std::move(bytes));
      } else {
        EXPECT_TRUE(bytes == first[i])
            << "result " << i << " has other bits than by " << backend.variants.front().name;
      }
    }
  }
  return results;
}

absl::Status CheckAvailable(const OpBackend& backend) {
  const absl::Status status = backend.available();
  const char* const required = std::getenv("STAGECOACH_REQUIRE_GPU");
  if (!status.ok() && required != nullptr && absl::string_view(required) == "1") {
    ADD_FAILURE() << backend.name << ": " << status;
  }
  return status;
}

std::vector<double> StoredBounds(const std::vector<double>& expected, std::vector<double> bounds,
                                 DType type) {
  STAGECOACH_CHECK(bounds.size() == expected.size(), "a bound for each value");
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = StoredBound(expected[i], bounds[i], type);
  return bounds;
}

}  // namespace stagecoach::testing
