#include "engine/train/measure/device_timer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"

namespace stagecoach::engine {
namespace {

constexpr int kRounds = 5;
constexpr uint64_t kSeed = 1;
// The number of random elements that are made once and repeated.
constexpr int64_t kPattern = int64_t{1} << 20;

}  // namespace

absl::StatusOr<DeviceTimer> DeviceTimer::Create(kernels::Device& device) {
  DeviceTimer timer(device);
  ASSIGN_OR_RETURN(timer.timeline_, device.CreateTimeline(2));
  return timer;
}

absl::Status DeviceTimer::Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work) {
  kernels::Stream& stream = device_->stream();
  absl::Status status;
  stream.Run([&] {
    status = work(stream);
    status.Update(
        stream.Finish(base::Deadline::After(absl::Minutes(1)), [] { return absl::OkStatus(); }));
  });
  return status;
}

absl::StatusOr<double> DeviceTimer::Seconds(
    int repetitions, absl::FunctionRef<absl::Status(kernels::Stream&, int)> issue) {
  std::vector<double> seconds;
  int turn = 0;
  for (int round = 0; round <= kRounds; ++round) {
    RETURN_IF_ERROR(Run([&](kernels::Stream& stream) -> absl::Status {
      RETURN_IF_ERROR(timeline_->Mark(0));
      for (int i = 0; i < repetitions; ++i) RETURN_IF_ERROR(issue(stream, turn++));
      return timeline_->Mark(1);
    }));
    ASSIGN_OR_RETURN(const auto start, timeline_->At(0));
    ASSIGN_OR_RETURN(const auto end, timeline_->At(1));
    if (round == 0) continue;
    seconds.push_back(std::chrono::duration<double>(end - start).count() / repetitions);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

absl::StatusOr<kernels::Tensor> DeviceTimer::Random(const kernels::Shape& shape,
                                                    kernels::DType dtype) {
  const int64_t pattern = std::min(shape.elements(), kPattern);
  std::vector<float> values(static_cast<size_t>(pattern));
  base::RandomStream(kSeed, filled_++).FillUniform(-1.0F, 1.0F, absl::MakeSpan(values));
  const int64_t pattern_bytes = pattern * SizeOf(dtype);
  ASSIGN_OR_RETURN(const kernels::HostBuffer host, device_->AllocateHost(pattern_bytes));
  if (dtype == kernels::DType::kBfloat16) {
    std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(host.data()),
                   kernels::ToBfloat16);
  } else {
    std::memcpy(host.data(), values.data(), static_cast<size_t>(pattern_bytes));
  }
  ASSIGN_OR_RETURN(std::byte* const data, Workspace(shape.elements() * SizeOf(dtype)));
  const kernels::Tensor tensor = {data, dtype, shape};
  RETURN_IF_ERROR(Run([&](kernels::Stream& stream) {
    absl::Status status;
    for (int64_t at = 0; at < tensor.bytes() && status.ok(); at += pattern_bytes) {
      status =
          stream.CopyFromHost(data + at, host.data(), std::min(pattern_bytes, tensor.bytes() - at));
    }
    return status;
  }));
  return tensor;
}

absl::StatusOr<std::byte*> DeviceTimer::Workspace(int64_t bytes) {
  ASSIGN_OR_RETURN(kernels::Buffer memory, device_->Allocate(std::max<int64_t>(bytes, 1)));
  memory_.push_back(std::move(memory));
  return memory_.back().data();
}

}  // namespace stagecoach::engine
