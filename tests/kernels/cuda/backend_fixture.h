#ifndef STAGECOACH_TESTS_KERNELS_CUDA_BACKEND_FIXTURE_H_
#define STAGECOACH_TESTS_KERNELS_CUDA_BACKEND_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"
#include "kernels/handover.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::kernels {

// The CUDA backend that ships, on the simulated machine. $STAGECOACH_CUDA_LIBRARY names the library
// that is linked to the stand-ins. A test fails if anything of it is left at its end.
class CudaBackendTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // The simulated machine starts anew; nothing may be left of the one before.
  static void StartMachine(const testing::cuda::StandInOptions& options);
  static CudaBackend& Backend();
  static int NumGpus();
  // Device "cuda:<gpu>" without a limit, which must come to be.
  static std::unique_ptr<Device> CreateDevice(int gpu = 0);
};

// Runs `work` as a job of the device's stream, waits for it, and returns what it returned.
absl::Status RunJob(Device& device, absl::FunctionRef<absl::Status(Stream&)> work);
// Stream::Finish in a job, within a minute.
absl::Status FinishStream(Device& device);

// The way between a device's memory and a test's values, by copies in the stream's order.
absl::Status Write(Device& device, const Buffer& to, absl::Span<const int32_t> values);
absl::StatusOr<std::vector<int32_t>> Read(Device& device, const Buffer& from);

// Keeps the device's compute stream from going on until the end of its life.
class Roadblock {
 public:
  explicit Roadblock(Device& device);
  ~Roadblock() { Lift(); }
  void Lift();

 private:
  std::shared_ptr<bool> lifted_ = std::make_shared<bool>(false);
};

// What a scenario makes, in the order in which it is made; the last to be made dies first.
struct World {
  ~World();
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Buffer> buffers;
  std::vector<HostBuffer> host_buffers;
  std::vector<std::unique_ptr<Recording>> recordings;
  std::vector<std::unique_ptr<Timeline>> timelines;
  std::vector<std::unique_ptr<Handover>> handovers;
};
using Scenario = std::function<absl::Status(World&)>;

// Performs the scenario again and again: the first call of a library that it makes fails on purpose
// in the first round, the second in the second, and so on until none is left. Expects an error that
// names the call each time, and nothing left.
void ExpectEveryFailureIsClean(const testing::cuda::StandInOptions& options,
                               const Scenario& scenario);
// The same with the operations that the GPUs perform, which fail after the call that issued them:
// expects an error (unless the operation comes after all that the scenario waits for), and nothing
// left.
void ExpectEveryAsynchronousFailureIsClean(const testing::cuda::StandInOptions& options,
                                           const Scenario& scenario);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_BACKEND_FIXTURE_H_
