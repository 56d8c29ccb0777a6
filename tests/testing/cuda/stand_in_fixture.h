#ifndef STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_FIXTURE_H_
#define STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_FIXTURE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {

class StandIn : public ::testing::Test {
 protected:
  StandIn() { Reset({}); }
  ~StandIn() override {
    EXPECT_EQ(live().total(), 0);
    FailCall(0);
  }
};

// An event of the current GPU.
class RawEvent {
 public:
  explicit RawEvent(unsigned flags = cudaEventDefault) {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, flags), cudaSuccess);
  }
  ~RawEvent() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  RawEvent(const RawEvent&) = delete;
  RawEvent& operator=(const RawEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Appends `value` to `log` in the stream's order.
inline void Log(cudaStream_t stream, std::vector<int>& log, int value) {
  ASSERT_EQ(Enqueue(stream, {.name = "log", .run = [&log, value] { log.push_back(value); }}),
            cudaSuccess);
  Progress();
}

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_FIXTURE_H_
