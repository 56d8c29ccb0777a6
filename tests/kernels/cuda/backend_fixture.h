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
#include "kernels/peer_copy.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::kernels {

// The CUDA backend that ships, on the simulated machine. $STAGECOACH_CUDA_LIBRARY names the library
// that is linked to the stand-ins. A test fails if it leaves anything behind.
class CudaBackendTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Restarts the simulated machine; nothing may be left of the one before.
  static void StartMachine(const testing::cuda::StandInOptions& options);
  static CudaBackend& Backend();
  static int NumGpus();
  // Creates device "cuda:<gpu>" without a limit, which must succeed.
  static std::unique_ptr<Device> CreateDevice(int gpu = 0);
};

// Runs `work` as a job of the device's stream, waits for it, and returns what it returned.
absl::Status RunJob(Device& device, absl::FunctionRef<absl::Status(Stream&)> work);
// Calls Stream::Finish in a job, within a minute.
absl::Status FinishStream(Device& device);

// Copy between a device's memory and a test's values, in the stream's order.
absl::Status Write(Device& device, const Buffer& to, absl::Span<const int32_t> values);
absl::StatusOr<std::vector<int32_t>> Read(Device& device, const Buffer& from);

// Blocks the device's compute stream until the end of its life.
class Roadblock {
 public:
  explicit Roadblock(Device& device);
  ~Roadblock() { Lift(); }
  void Lift();

 private:
  std::shared_ptr<bool> lifted_ = std::make_shared<bool>(false);
};

// The objects that a scenario creates, in the order of creation; destroyed in reverse.
struct World {
  ~World();
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Buffer> buffers;
  std::vector<HostBuffer> host_buffers;
  std::vector<std::unique_ptr<Recording>> recordings;
  std::vector<std::unique_ptr<Timeline>> timelines;
  std::vector<std::unique_ptr<PeerCopy>> peer_copies;
};
using Scenario = std::function<absl::Status(World&)>;

// Repeats the scenario: the first library call that it makes fails on purpose in the first round,
// the second in the second, and so on until none is left. Expects an error that names the call each
// time, and nothing left behind.
void ExpectEveryFailureIsClean(const testing::cuda::StandInOptions& options,
                               const Scenario& scenario);
// Does the same with the operations that the GPUs perform, which fail after the call that issued
// them: expects an error (unless the operation comes after everything that the scenario waits for),
// and nothing left behind.
void ExpectEveryAsynchronousFailureIsClean(const testing::cuda::StandInOptions& options,
                                           const Scenario& scenario);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_BACKEND_FIXTURE_H_
