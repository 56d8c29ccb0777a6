// What a plan gains over cutting the layers into equal numbers, on CPU devices of one thread each,
// and whether the step is as long as the measured profile of the layers says: "alone" with a core
// for every device, "shared" with the cores of this machine; "ratio" is shared / measured. Prints a
// table per network; takes about three minutes on two cores, idle otherwise, and 6 GB of memory.
//   build/release/bench/plan_bench
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/parallel.h"
#include "engine/stagecoach.h"
#include "engine/train/measured_profile.h"
#include "partition/search/make_plan.h"
#include "partition/search/planner.h"
#include "partition/search/receipt_of.h"
#include "schedule/shared_cores.h"
#include "schedule/simulate.h"

namespace stagecoach::bench {
namespace {

constexpr int kWarmUpSteps = 2, kSteps = 9;

template <typename T>
T Value(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

struct Contest {
  std::string name;
  engine::Model model;
  int devices = 1;
  int micro_batches = 1;
  int64_t micro_batch_rows = 1;
  // Sizes that a joint plan may choose from; ascending, each divides the batch.
  std::vector<int64_t> sizes;

  int64_t batch_rows() const { return micro_batches * micro_batch_rows; }
};

// The shape of a small GPT: what follows the blocks costs far more than any of them.
engine::Model HeadHeavy(int blocks, const std::vector<engine::LayerFactory>& block) {
  constexpr int64_t kVocabulary = 50'257;
  engine::Model model{.input = engine::Shape{768}};
  for (int i = 0; i < blocks; ++i) model.layers.push_back(engine::Residual(block));
  model.layers.push_back(engine::Linear(kVocabulary));
  return model;
}

std::vector<Contest> Contests() {
  using engine::Activation;
  return {{.name = "default network",
           .model = Value(engine::DefaultNetwork(784, 10, 20, 2304)),
           .devices = 2,
           .micro_batches = 8,
           .micro_batch_rows = 64,
           .sizes = {32, 64, 128}},
          {.name = "head-heavy",
           .model = HeadHeavy(11, {engine::LayerNorm(), engine::Linear(768, Activation::kGelu)}),
           .devices = 4,
           .micro_batches = 8,
           .micro_batch_rows = 16,
           .sizes = {8, 16, 32}},
          {.name = "head-heavy, wide blocks",
           .model = HeadHeavy(11, {engine::LayerNorm(), engine::Linear(3072, Activation::kGelu),
                                   engine::Linear(768)}),
           .devices = 4,
           .micro_batches = 8,
           .micro_batch_rows = 16,
           .sizes = {8, 16, 32}}};
}

partition::Plan UniformPlan(const Contest& contest) {
  partition::Plan plan = {.num_layers = contest.model.num_layers(),
                          .micro_batch_rows = contest.micro_batch_rows,
                          .schedule = Value(partition::GeneratedSchedule(
                              "1f1b", contest.micro_batches)(contest.devices))};
  for (int stage = 0; stage < plan.schedule.num_stages(); ++stage) {
    plan.first_layer.push_back(stage * plan.num_layers / plan.schedule.num_stages());
  }
  return plan;
}

partition::Plan CutPlan(const Contest& contest, const partition::Profile& profile) {
  const partition::SizedLayers layers = LayersAt(profile, contest.micro_batch_rows);
  return Value(partition::MakePlan(
                   {.layers = layers.layers,
                    .ends = layers.ends(contest.micro_batches),
                    .devices = contest.devices,
                    .schedule = partition::GeneratedSchedule("1f1b", contest.micro_batches),
                    .micro_batch_rows = contest.micro_batch_rows}))
      .plan;
}

partition::Plan JointPlan(const Contest& contest, const partition::Profile& profile) {
  return Value(partition::PlanJointly({.profile = profile,
                                       .cluster = partition::UniformCluster(contest.devices),
                                       .batch_rows = contest.batch_rows()}))
      .plan;
}

struct Prediction {
  double alone_ms = 0.0;   // with a core for every device
  double shared_ms = 0.0;  // with the cores of this machine
};

Prediction Predict(const partition::Plan& plan, const partition::Profile& profile) {
  const auto receipt =
      Value(ReceiptOf(plan, profile, partition::UniformCluster(plan.num_devices())));
  return {
      .alone_ms = static_cast<double>(receipt.simulation.step_ns) / 1e6,
      .shared_ms =
          schedule::SharedCoresStepNs(plan.schedule, receipt.costs, base::AvailableCpus()) / 1e6};
}

// One plan in training.
class Contestant {
 public:
  Contestant(std::string name, const Contest& contest, const partition::Plan& plan)
      : name_(std::move(name)),
        plan_(plan),
        trainer_(Value(engine::Trainer::Create(
            contest.model, plan, {.learning_rate = engine::LearningRate::Constant(1e-6F)}))),
        rows_(static_cast<size_t>(contest.batch_rows())) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  void Step(const engine::Dataset& data, bool counts) {
    const auto start = std::chrono::steady_clock::now();
    STAGECOACH_CHECK_OK(trainer_->Step(data, rows_));
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (counts) steps_ms_.push_back(time.count());
  }

  double MedianMs() {
    const auto middle = steps_ms_.begin() + static_cast<ptrdiff_t>(steps_ms_.size() / 2);
    std::nth_element(steps_ms_.begin(), middle, steps_ms_.end());
    return *middle;
  }

  const std::string& name() const { return name_; }
  const partition::Plan& plan() const { return plan_; }

 private:
  const std::string name_;
  const partition::Plan plan_;
  const std::unique_ptr<engine::Trainer> trainer_;
  std::vector<int64_t> rows_;
  std::vector<double> steps_ms_;
};

void Run(const Contest& contest) {
  const auto profile =
      Value(MeasureProfile(contest.model, contest.name, contest.sizes, {},
                           {.devices = std::min(contest.devices, base::AvailableCpus())}));
  std::vector<std::unique_ptr<Contestant>> contestants;
  const auto add = [&](const char* name, const partition::Plan& plan) {
    contestants.push_back(std::make_unique<Contestant>(name, contest, plan));
  };
  add("uniform", UniformPlan(contest));
  add("cut", CutPlan(contest, profile));
  add("joint", JointPlan(contest, profile));
  const auto data =
      Value(engine::LoadData({.spec = absl::StrFormat("synthetic:%dx%dx10", contest.batch_rows(),
                                                      contest.model.input.elements())}));
  // In turns, so that a machine whose speed drifts is as fast for one as for the other.
  for (int step = 0; step < kWarmUpSteps + kSteps; ++step) {
    for (const auto& contestant : contestants) {
      contestant->Step(*data.train, step >= kWarmUpSteps);
    }
  }
  std::printf("\n%s, %d devices, batch of %lld rows, %d cores\n", contest.name.c_str(),
              contest.devices, static_cast<long long>(contest.batch_rows()), base::AvailableCpus());
  std::printf("%-8s  %-8s  %7s  %11s  %8s  %9s  %6s  %6s  %s\n", "plan", "schedule", "batches",
              "measured ms", "alone ms", "shared ms", "ratio", "gain", "stages begin with layers");
  const double uniform_ms = contestants.front()->MedianMs();
  for (const auto& contestant : contestants) {
    const partition::Plan& plan = contestant->plan();
    const Prediction prediction = Predict(plan, profile);
    const double measured_ms = contestant->MedianMs();
    std::printf("%-8s  %-8s  %7s  %11.2f  %8.2f  %9.2f  %6.4f  %4.1f %%  %s\n",
                contestant->name().c_str(), plan.schedule.name.c_str(),
                absl::StrFormat("%dx%d", plan.micro_batches(), plan.micro_batch_rows).c_str(),
                measured_ms, prediction.alone_ms, prediction.shared_ms,
                prediction.shared_ms / measured_ms, 100 * (uniform_ms / measured_ms - 1),
                absl::StrJoin(plan.first_layer, " ").c_str());
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace stagecoach::bench

int main() {
  for (const auto& contest : stagecoach::bench::Contests()) stagecoach::bench::Run(contest);
}
