#include "engine/runtime/stage/optimizer_shard.h"

#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/ops.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/replication.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::ParameterTensors;
using kernels::Shape;
using ::stagecoach::testing::RandomNormal;

// No size falls on a boundary of a part or shard: one spans two parts, some lie in one shard.
constexpr int64_t kSizes[] = {7, 1'500'001, 33, 1, 300'000, 2'000'003, 16};
constexpr int64_t kAveraged = 300'000;  // the size of the one that is a moving average
constexpr int kUpdates = 3;

// A stage's parameters, laid out as in Stage.
struct Parameters {
  std::vector<ModelParameter> all = std::vector<ModelParameter>(std::size(kSizes));
  std::vector<float> values, gradients, states;
  std::vector<ParameterTensors> tensors;
};

int64_t AlignedElements(int64_t size) {
  return partition::AlignTensor(size * SizeOf(DType::kFloat32)) / SizeOf(DType::kFloat32);
}

std::unique_ptr<Parameters> MakeParameters() {
  auto parameters = std::make_unique<Parameters>();
  int64_t elements = 0;
  for (const int64_t size : kSizes) elements += AlignedElements(size);
  parameters->values = RandomNormal(elements, 1);
  parameters->gradients = RandomNormal(elements, 2);
  int64_t begin = 0;
  for (const int64_t size : kSizes) {
    ParameterTensors& tensors = parameters->tensors.emplace_back();
    tensors.value = kernels::Float32(parameters->values.data() + begin, Shape{size});
    tensors.gradient = kernels::Float32(parameters->gradients.data() + begin, Shape{size});
    tensors.decays = begin % 64 == 0;
    if (parameters->tensors.size() % 2 == 0) tensors.rate_factor = 0.25F;
    if (parameters->tensors.size() % 3 == 0) tensors.weight_decay = 0.5F;
    if (size == kAveraged) tensors.average = {.momentum = 0.25F, .share = 0.5F};
    begin += AlignedElements(size);
  }
  return parameters;
}

UpdateStep StepAt(int64_t step) { return {.step = step, .learning_rate = 0.01F}; }

// Returns the parameters after an update by one optimizer, which has all states.
std::vector<float> Expected(const Optimizer& optimizer) {
  const auto device = kernels::CreateCpuDevice({}).value();
  const auto parameters = MakeParameters();
  const auto elements = static_cast<int64_t>(parameters->values.size());
  parameters->states.resize(static_cast<size_t>(2 * elements));
  for (ParameterTensors& tensors : parameters->tensors) {
    if (tensors.average.has_value()) continue;
    const int64_t begin = tensors.value.f32() - parameters->values.data();
    for (int state = 0; state < optimizer.states(); ++state) {
      tensors.states[static_cast<size_t>(state)] = kernels::Float32(
          parameters->states.data() + state * elements + begin, tensors.value.shape);
    }
  }
  device->stream().Run([&] {
    const auto group =
        device->ops().optimizer().CreateGroup(device->stream(), parameters->tensors).value();
    for (int step = 1; step <= kUpdates; ++step) {
      EXPECT_OK(UpdateParameters(optimizer, StepAt(step), *device, *group));
    }
  });
  return parameters->values;
}

TEST(OptimizerShard, UpdatesAsOneOptimizerDoes) {
  const auto device = kernels::CreateCpuDevice({}).value();
  for (const Optimizer& optimizer : {Optimizer::AdamW(), Optimizer::Sgd()}) {
    const std::vector<float> expected = Expected(optimizer);
    for (const partition::Replication& replication :
         {partition::Replication{2, 2, true}, partition::Replication{8, 8, true},
          partition::Replication{
              .replicas = 2, .gradient_blocks = 2, .shards_optimizer = true, .part_bytes = 4096}}) {
      // All shards run in turn on the same memory: together they update each element once.
      const auto parameters = MakeParameters();
      const auto bytes = static_cast<int64_t>(parameters->values.size() * sizeof(float));
      const int64_t averaged_bytes = AlignedElements(kAveraged) * SizeOf(DType::kFloat32);
      const int64_t state_bytes = partition::OptimizerBytes(
          optimizer.states() * (bytes - averaged_bytes), bytes, averaged_bytes, replication);
      for (int replica = 0; replica < replication.replicas; ++replica) {
        std::vector<float> states(static_cast<size_t>(state_bytes) / sizeof(float));
        ASSERT_OK_AND_ASSIGN(
            const auto shard,
            OptimizerShard::Create({.device = device.get(),
                                    .optimizer = optimizer,
                                    .parameters = parameters->all,
                                    .tensors = parameters->tensors,
                                    .gradients = kernels::Float32(
                                        parameters->gradients.data(),
                                        Shape{static_cast<int64_t>(parameters->gradients.size())}),
                                    .states = reinterpret_cast<std::byte*>(states.data()),
                                    .replication = replication,
                                    .replica = replica}));
        device->stream().Run([&] {
          for (int step = 1; step <= kUpdates; ++step) {
            shard->Begin(StepAt(step));
            for (int64_t part = 0; part < partition::ReductionParts(bytes, replication); ++part) {
              EXPECT_OK(shard->UpdatePart(part));
            }
            EXPECT_OK(shard->Finish());
          }
        });
      }
      EXPECT_TRUE(parameters->values == expected)
          << replication.replicas << " replicas, parts of " << replication.part_bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
