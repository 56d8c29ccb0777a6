#include "kernels/staging.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::staging_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

using StagingTest = CudaBackendTest;
using Bytes = std::vector<std::byte>;

constexpr int64_t kBuffer = 4096;
constexpr StagingOptions kSmall = {.buffer_bytes = kBuffer, .buffers = 3, .threads = 3};

Bytes Pattern(int64_t bytes, int seed) {
  Bytes pattern;
  for (int64_t i = 0; i < bytes; ++i) {
    pattern.push_back(static_cast<std::byte>((i * 31 + (i >> 8) + seed) & 0xFF));
  }
  return pattern;
}

// Tensors in a device's memory, one after the other, and what they must hold.
struct Tensors {
  Tensors(Device& device, const std::vector<int64_t>& sizes) {
    for (const int64_t bytes : sizes) {
      begins.push_back(total);
      contents.push_back(Pattern(bytes, static_cast<int>(contents.size())));
      total += bytes;
    }
    memory = device.Allocate(std::max<int64_t>(total, 1)).value();
  }
  int count() const { return static_cast<int>(contents.size()); }

  std::vector<Bytes> contents;
  std::vector<int64_t> begins;
  int64_t total = 0;
  Buffer memory;
};

absl::Status UploadAll(Device& device, const Tensors& tensors, const StagingOptions& options) {
  return RunJob(device, [&](Stream&) {
    const auto fill = [&](int i, Uploader& uploader) {
      const auto index = static_cast<size_t>(i);
      Bytes content = tensors.contents[index];
      const absl::Status status =
          uploader.Copy(tensors.memory.data() + tensors.begins[index], content.data(),
                        static_cast<int64_t>(content.size()));
      std::fill(content.begin(), content.end(), std::byte{0xEE});  // may be changed by now
      return status;
    };
    return Upload(device, tensors.total, tensors.count(), fill, options);
  });
}

absl::StatusOr<std::vector<Bytes>> DownloadAll(Device& device, const Tensors& tensors,
                                               const StagingOptions& options) {
  std::vector<Bytes> values;
  std::vector<DownloadPiece> pieces;
  for (size_t i = 0; i < tensors.contents.size(); ++i) {
    values.emplace_back(tensors.contents[i].size());
    pieces.push_back({.to = values[i].data(),
                      .from = tensors.memory.data() + tensors.begins[i],
                      .bytes = static_cast<int64_t>(values[i].size())});
  }
  const absl::Status status =
      RunJob(device, [&](Stream&) { return Download(device, pieces, options); });
  if (!status.ok()) return status;
  return values;
}

TEST_F(StagingTest, BytesOfAnySizeComeAndGo) {
  const auto device = CreateDevice();
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{},
                                            {0},
                                            {1},
                                            {kBuffer},
                                            {kBuffer - 1, 2, 0, kBuffer + 1},
                                            {1, 0, 20 * kBuffer + 5, 3, 9 * kBuffer, 1},
                                            std::vector<int64_t>(300, 41)}) {
    const Tensors tensors(*device, sizes);
    for (const StagingOptions& options :
         {kSmall, StagingOptions{.buffer_bytes = kBuffer, .buffers = 1, .threads = 1},
          StagingOptions()}) {
      ASSERT_OK(UploadAll(*device, tensors, options));
      ASSERT_OK_AND_ASSIGN(const std::vector<Bytes> values, DownloadAll(*device, tensors, options));
      EXPECT_TRUE(values == tensors.contents) << ::testing::PrintToString(sizes);
    }
  }
}

TEST_F(StagingTest, WaitsForBuffersAndNotForTensors) {
  if (!cuda::IsSimulated()) GTEST_SKIP() << "the driver's calls are not counted";
  const auto device = CreateDevice();
  const StagingOptions options = {.buffer_bytes = kBuffer, .buffers = 3, .threads = 1};
  const auto calls_of = [&](const std::vector<int64_t>& sizes) {
    const Tensors tensors(*device, sizes);
    const std::map<std::string, int64_t> before = cuda::CallsByName();
    EXPECT_OK(UploadAll(*device, tensors, options));
    EXPECT_OK(DownloadAll(*device, tensors, options));
    std::map<std::string, int64_t> calls = cuda::CallsByName();
    for (const auto& [name, number] : before) calls[name] -= number;
    return calls;
  };
  auto one = calls_of({10 * kBuffer}), many = calls_of(std::vector<int64_t>(80, kBuffer / 8));
  EXPECT_EQ(one["cudaMemcpyAsync"], 2 * 10);
  EXPECT_EQ(many["cudaMemcpyAsync"], 2 * 80);
  for (auto* const calls : {&one, &many}) {
    EXPECT_EQ((*calls)["cudaEventRecord"], 2 * 10);  // one per copied buffer
    EXPECT_EQ((*calls)["cudaHostAlloc"], 2);
    for (const char* wait : {"cudaEventSynchronize", "cudaStreamSynchronize", "cudaStreamQuery"}) {
      EXPECT_EQ((*calls)[wait], 0) << wait;
    }
  }
}

TEST_F(StagingTest, TheFirstSourceThatFailsIsTheError) {
  const auto device = CreateDevice();
  const Tensors tensors(*device, std::vector<int64_t>(20, kBuffer));
  for (int round = 0; round < 20; ++round) {
    const absl::Status status = RunJob(*device, [&](Stream&) {
      const auto fill = [&](int i, Uploader& uploader) -> absl::Status {
        if (i >= 4) return absl::DataLossError(absl::StrCat("source ", i));
        const auto index = static_cast<size_t>(i);
        return uploader.Copy(tensors.memory.data() + tensors.begins[index],
                             tensors.contents[index].data(), kBuffer);
      };
      return Upload(*device, tensors.total, tensors.count(), fill, kSmall);
    });
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("source 4")));
  }
  EXPECT_OK(UploadAll(*device, tensors, kSmall));
}

TEST_F(StagingTest, EveryFailureIsClean) {
  if (!cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  const Scenario scenario = [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> created, Backend().CreateDevice({.gpu = 0}));
    world.devices.push_back(std::move(created));
    Device& device = *world.devices[0];
    ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(5 * kBuffer));
    world.buffers.push_back(std::move(buffer));
    const Bytes sent = Pattern(5 * kBuffer, 1);
    Bytes received(sent.size());
    RETURN_IF_ERROR(RunJob(device, [&](Stream&) -> absl::Status {
      std::byte* const memory = world.buffers[0].data();
      RETURN_IF_ERROR(Upload(
          device, std::ssize(sent), 5,
          [&](int i, Uploader& uploader) {
            return uploader.Copy(memory + i * kBuffer, sent.data() + i * kBuffer, kBuffer);
          },
          kSmall));
      return Download(
          device, {{.to = received.data(), .from = memory, .bytes = std::ssize(received)}}, kSmall);
    }));
    return sent == received ? absl::OkStatus() : absl::DataLossError("other bytes came back");
  };
  ExpectEveryFailureIsClean({.gpus = 1}, scenario);
  ExpectEveryAsynchronousFailureIsClean({.gpus = 1}, scenario);
}

}  // namespace
}  // namespace stagecoach::kernels::staging_test
