#include "bench/device_timer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"

namespace stagecoach::bench {
namespace {

constexpr int kRounds = 5;
constexpr uint64_t kSeed = 1;
// Random numbers are made once for so many elements, and repeated.
constexpr int64_t kPattern = int64_t{1} << 20;

template <typename T>
T Take(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

}  // namespace

DeviceTimer::DeviceTimer(kernels::Device& device)
    : device_(device), timeline_(Take(device.CreateTimeline(2))) {}

void DeviceTimer::Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work) {
  kernels::Stream& stream = device_.stream();
  stream.Run([&] {
    STAGECOACH_CHECK_OK(work(stream));
    STAGECOACH_CHECK_OK(
        stream.Finish(base::Deadline::After(absl::Minutes(1)), [] { return absl::OkStatus(); }));
  });
}

double DeviceTimer::Seconds(int repetitions,
                            absl::FunctionRef<absl::Status(kernels::Stream&, int)> issue) {
  std::vector<double> seconds;
  int turn = 0;
  for (int round = 0; round <= kRounds; ++round) {
    Run([&](kernels::Stream& stream) -> absl::Status {
      RETURN_IF_ERROR(timeline_->Mark(0));
      for (int i = 0; i < repetitions; ++i) RETURN_IF_ERROR(issue(stream, turn++));
      return timeline_->Mark(1);
    });
    const std::chrono::duration<double> taken = Take(timeline_->At(1)) - Take(timeline_->At(0));
    if (round > 0) seconds.push_back(taken.count() / repetitions);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

kernels::Tensor DeviceTimer::Random(const kernels::Shape& shape, kernels::DType dtype) {
  const int64_t pattern = std::min(shape.elements(), kPattern);
  std::vector<float> values(static_cast<size_t>(pattern));
  base::RandomStream(kSeed, filled_++).FillUniform(-1.0F, 1.0F, absl::MakeSpan(values));
  const int64_t pattern_bytes = pattern * SizeOf(dtype);
  const kernels::HostBuffer host = Take(device_.AllocateHost(pattern_bytes));
  if (dtype == kernels::DType::kBfloat16) {
    std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(host.data()),
                   kernels::ToBfloat16);
  } else {
    std::memcpy(host.data(), values.data(), static_cast<size_t>(pattern_bytes));
  }
  const kernels::Tensor tensor = {Workspace(shape.elements() * SizeOf(dtype)), dtype, shape};
  Run([&](kernels::Stream& stream) {
    absl::Status status;
    for (int64_t at = 0; at < tensor.bytes() && status.ok(); at += pattern_bytes) {
      status = stream.CopyFromHost(static_cast<std::byte*>(tensor.data) + at, host.data(),
                                   std::min(pattern_bytes, tensor.bytes() - at));
    }
    return status;
  });
  return tensor;
}

std::byte* DeviceTimer::Workspace(int64_t bytes) {
  memory_.push_back(Take(device_.Allocate(std::max<int64_t>(bytes, 1))));
  return memory_.back().data();
}

}  // namespace stagecoach::bench
