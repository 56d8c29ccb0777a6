#ifndef STAGECOACH_ENGINE_TRAIN_MEASURED_PROFILE_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURED_PROFILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/models/model.h"
#include "engine/runtime/stage/profile.h"
#include "partition/cost/profile.h"
#include "partition/plan/plan.h"

namespace stagecoach::engine {

struct MeasureOptions {
  int repeats = 5;  // steps that count, after one that does not; at least 1
  // Devices that share the work while it is measured, in groups of ProfileOptions::tensor_parts: at
  // least one group, at most one per layer. Devices slow
  // each other down, since they share memory and caches: use as many as will train concurrently,
  // but at most one per core.
  int devices = 1;
  // The step's own time is measured after all passes, as with replicas and clipping, and not as
  // part of the last one, which has gradients in its cache.
  bool updates_apart = false;
  // Asked between steps whether to end with Cancelled. May be empty.
  std::function<bool()> is_stopped = nullptr;
};

// Does the same as AnalyzeModel, but with the times that layers take while the whole model trains
// on random data on CPU devices made for it, each layer being a stage of its own: so every layer
// finds the caches as it does in training. Times are medians over the repeats of the means over the
// micro-batches of a step (measured_costs.h). The first layer's F includes feeding it with data,
// the last one's F the loss.
//
// LayerCost::spread: the distance between the first and the third quartile, over the repeats, of
// the time that the layer takes for a whole step, as a share of the median.
//
// ModelProfile::overheads: MessageNs, and the median over the repeats.
//
// Errors: those of AnalyzeModel and Trainer::Create, and Cancelled. Takes the memory of training
// the whole model.
absl::StatusOr<ModelProfile> MeasureModel(const Model& model, const ProfileOptions& options,
                                          const MeasureOptions& measure);

// Calls MeasureModel for each of the sizes, which ascend, and joins the results like
// AnalyzeProfile.
absl::StatusOr<partition::Profile> MeasureProfile(const Model& model, std::string model_name,
                                                  absl::Span<const int64_t> micro_batch_rows,
                                                  ProfileOptions options,
                                                  const MeasureOptions& measure);

// Sums gradients of 32 MiB over that many replicas of a device in this process, >= 2, without a
// memory budget and with nothing else to do, and returns the rate at which each sent and received:
// 2 (replicas - 1) / replicas of the gradients each way in the median of a few times, in bytes per
// second, as in partition::Cluster::within_host. Errors: those of Trainer::Create.
absl::StatusOr<double> MeasureExchange(DeviceSpec device, int replicas);

// Trains a small network on one such device, without a memory budget and with nothing else to do,
// all of whose stashes move to the host's memory, and returns the link to it as measured by
// MeasureCosts. Errors: those of Trainer::Create.
absl::StatusOr<schedule::HostLink> MeasureHostLink(DeviceSpec device);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURED_PROFILE_H_
