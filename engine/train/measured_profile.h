#ifndef STAGECOACH_ENGINE_TRAIN_MEASURED_PROFILE_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURED_PROFILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"
#include "engine/stage/profile.h"
#include "partition/plan/plan.h"
#include "partition/profile.h"

namespace stagecoach::engine {

struct MeasureOptions {
  int repeats = 5;  // steps that count, after one that does not; at least 1
  // Devices that share the work while it is measured, at most one per layer is used. Devices slow
  // each other down, since they share memory and caches: take as many as will train at the same
  // time, but at most one per core.
  int devices = 1;
  // The step's own time is measured after all passes, as replicas and clipping have it, and not as
  // part of the last one, which has gradients in its cache.
  bool updates_apart = false;
  // Asked between steps: whether to end with Cancelled. May be empty.
  std::function<bool()> is_stopped = nullptr;
};

// AnalyzeModel, but with the times that layers take while the whole model trains on random data on
// CPU devices made for it, each layer being a stage of its own: so every layer finds the caches as
// it does in training. Times are means over the micro-batches of a step, and of those the median
// over the repeats (measured_costs.h). The first layer's F includes that it is given its data, the
// last one's F the loss.
//
// LayerCost::spread: of the time that the layer takes for a whole step, the distance between the
// first and the third quartile of the repeats, as a share of the median.
//
// Errors: those of AnalyzeModel and Trainer::Create, and Cancelled. Takes the memory of training
// the model whole.
absl::StatusOr<ModelProfile> MeasureModel(const Model& model, const ProfileOptions& options,
                                          const MeasureOptions& measure);

// MeasureModel for each of the sizes, which ascend, as AnalyzeProfile does it.
absl::StatusOr<partition::Profile> MeasureProfile(const Model& model, std::string model_name,
                                                  absl::Span<const int64_t> micro_batch_rows,
                                                  ProfileOptions options,
                                                  const MeasureOptions& measure);

// Sums gradients of 32 MiB over that many replicas of a device in this process, >= 2, without its
// budget of memory and with nothing else to do, and returns the rate at which each sent and
// received: 2 (replicas - 1) / replicas of the gradients each way in the median of a few times, in
// bytes a second, as partition::Cluster::within_host has it. Errors: those of Trainer::Create.
absl::StatusOr<double> MeasureExchange(DeviceSpec device, int replicas);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURED_PROFILE_H_
