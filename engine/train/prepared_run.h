#ifndef STAGECOACH_ENGINE_TRAIN_PLAN_MODEL_H_
#define STAGECOACH_ENGINE_TRAIN_PLAN_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/run/rank_group.h"
#include "engine/stage/optimizer.h"
#include "engine/stage/profile.h"
#include "partition/plan/plan.h"
#include "partition/search/make_plan.h"

namespace stagecoach::engine {

struct PlanOptions {
  int devices = 1;
  std::string schedule = "1f1b";  // a name of schedule::Generators()
  int chunks = 0;                 // stages per device; 0: the schedule's own number
  int micro_batches = 1;
  int64_t micro_batch_rows = 1;
  Optimizer optimizer;  // its state takes memory
  DeviceSpec device;    // each of them
  Exchange exchange = Exchange::kAuto;
};

// What partition::MakePlan needs to know of a model whose profile is known.
partition::PlanRequest RequestFor(const ModelProfile& profile, const PlanOptions& options);

// The cut of `model` into stages whose slowest one is fastest by the analytic cost model. Errors:
// those of AnalyzeModel and partition::MakePlan.
absl::StatusOr<partition::Plan> PlanModel(const Model& model, const PlanOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_PLAN_MODEL_H_
