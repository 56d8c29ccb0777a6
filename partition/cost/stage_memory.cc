#include "partition/cost/stage_memory.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using schedule::StageMemory;

// Returns what remains of a layer if nothing follows F.
LayerMemory OfForward(LayerMemory layer) {
  STAGECOACH_CHECK(!layer.dropped.has_value(), "without B, no layer does F again");
  if (layer.working_bytes > 0) {
    layer.other_resident_bytes -= layer.working_bytes;
    layer.parameter_bytes = layer.averaged_bytes + layer.working_bytes;
  }
  layer.optimizer_bytes = 0;
  layer.gradient_stash_bytes = 0;
  layer.input_last_use = layer.output_last_use = LastUse::kForward;
  return layer;
}

// Lays out layers from the first to the last. Offsets within the workspace are known only once the
// sizes of its parts are: FinishPlaces sets them.
class Layout {
 public:
  Layout(const EndMemory& ends, const StagePosition& position, std::vector<LayerPlaces>* places)
      : ends_(ends), position_(position), places_(places) {}

  void Append(const LayerMemory& given) {
    const LayerMemory layer = position_.trains ? given : OfForward(given);
    if (layers_++ == 0) {
      first_ = layer;
    } else {
      AddBoundary(last_, layer);
    }
    sums_.parameter_bytes += layer.parameter_bytes;
    sums_.optimizer_bytes += layer.optimizer_bytes;
    averaged_bytes_ += layer.averaged_bytes;
    host_value_bytes_ += HostValueBytes(layer, position_.replication);
    sums_.other_resident_bytes += layer.other_resident_bytes + layer.cache_bytes;
    sums_.frozen_bytes += layer.frozen_bytes;
    AddLayer(layer);
    last_ = layer;
  }

  // Returns the stage made of the layers so far.
  StageMemory Stage() const {
    StageMemory stage = sums_;
    stage.workspace_bytes = FusedGradientOffset() + fused_gradient_bytes_;
    if (position_.trains) {
      stage.optimizer_bytes = OptimizerBytes(stage.optimizer_bytes, stage.parameter_bytes,
                                             averaged_bytes_, position_.replication);
      stage.gradient_bytes = position_.replication.gradient_copies() * stage.parameter_bytes;
      stage.reduction_bytes = ReductionBytes(stage.parameter_bytes, position_.replication);
      if (position_.replication.offloads_optimizer) {
        stage.parameter_bytes -= host_value_bytes_;
        stage.host_resident_bytes = host_value_bytes_ + std::exchange(stage.optimizer_bytes, 0);
      }
    }
    stage.other_resident_bytes += ends_.stage_resident_bytes;
    if (position_.is_first) stage.other_resident_bytes += ends_.feed_resident_bytes;
    if (position_.is_last) {
      stage.workspace_bytes = std::max(stage.workspace_bytes, ends_.loss_workspace_bytes);
      stage.other_resident_bytes += ends_.loss_resident_bytes;
    }
    stage.input_bytes = first_.input_bytes;
    stage.input_last_use = first_.input_last_use;
    const bool has_input_gradient = position_.trains && !position_.is_first;
    stage.input_gradient_bytes = has_input_gradient ? first_.input_bytes : 0;
    stage.output_bytes = last_.output_bytes + last_.passing_bytes;
    stage.output_last_use = last_.output_last_use;
    stage.output_gradient_bytes = position_.trains ? stage.output_bytes : 0;
    stage.output_gradient_last_use = last_.output_gradient_last_use;
    return stage;
  }

  // Called when no layer follows.
  void FinishPlaces() {
    for (size_t i = 0; i < places_->size(); ++i) {
      LayerPlaces& own = (*places_)[i];
      for (Place* const slot : {&own.output, &own.output_gradient}) {
        if (slot->area == Place::Area::kWorkspace) slot->offset = SlotOffset(i);
      }
      if (own.second_output.has_value()) own.second_output->offset = SlotOffset(i + 1);
      own.skips.offset = SkipsOffset();
      own.workspace.offset = ScratchOffset();
      if (!splits_backward()) own.gradient_stash.offset = FusedGradientOffset();
      // The dropped part was placed within its own part.
      if (own.stash.area == Place::Area::kWorkspace) {
        own.stash.offset += ScratchOffset();
        if (!splits_backward()) own.weight_stash.offset += FusedGradientOffset();
        own.first_weight_stash.offset +=
            splits_backward() ? ScratchOffset() : FusedGradientOffset();
      }
    }
  }

 private:
  bool splits_backward() const { return position_.splits_backward; }

  // Adds the areas of a layer.
  void AddLayer(const LayerMemory& layer) {
    LayerPlaces own;
    own.stash = InStash(layer.stash_bytes);
    own.weight_stash = InWeightStash(layer.weight_stash_bytes);
    scratch_bytes_ = std::max(scratch_bytes_, layer.workspace_bytes);
    if (splits_backward()) {
      own.gradient_stash = InGradientStash(layer.gradient_stash_bytes);
    } else {
      fused_gradient_bytes_ = std::max(fused_gradient_bytes_, layer.gradient_stash_bytes);
    }
    if (layer.dropped.has_value()) PlaceDropped(layer, own);
    if (places_ != nullptr) places_->push_back(own);
  }

  // Adds what lies between the layer that was added last and its successor.
  void AddBoundary(const LayerMemory& producer, const LayerMemory& consumer) {
    const int64_t bytes = AlignTensor(producer.output_bytes);
    skip_area_bytes_ = std::max(skip_area_bytes_, AlignTensor(producer.skip_area_bytes));
    Place output, output_gradient;
    switch (std::max(producer.output_last_use, consumer.input_last_use)) {
      case LastUse::kForward:
        slot_bytes_ = std::max(slot_bytes_, bytes);
        break;
      case LastUse::kBackwardInput:
        output = InStash(bytes);
        break;
      case LastUse::kBackwardWeight:
        output = InWeightStash(bytes);
        break;
    }
    if (splits_backward() && producer.output_gradient_last_use == LastUse::kBackwardWeight) {
      output_gradient = InGradientStash(bytes);
    } else {
      slot_bytes_ = std::max(slot_bytes_, bytes);
    }
    if (places_ == nullptr) return;
    places_->back().output = output;
    places_->back().output_gradient = output_gradient;
  }

  // Sets the places of what the layer drops; those in the workspace count from the layer's part of
  // it.
  void PlaceDropped(const LayerMemory& layer, LayerPlaces& own) {
    const DroppedStash& dropped = *layer.dropped;
    own.stash = {Place::Area::kWorkspace, layer.workspace_bytes - dropped.stash_bytes};
    own.weight_stash = own.gradient_stash;
    own.weight_stash.offset += layer.gradient_stash_bytes - dropped.weight_stash_bytes;
    own.first_weight_stash = own.weight_stash;
    if (splits_backward()) {
      own.first_weight_stash = {Place::Area::kWorkspace, layer.workspace_bytes};
      scratch_bytes_ = std::max(scratch_bytes_, layer.workspace_bytes + dropped.weight_stash_bytes);
    }
    if (layer.output_last_use == LastUse::kForward) {
      own.second_output = Place();
      slot_bytes_ = std::max(slot_bytes_, AlignTensor(layer.output_bytes));
    }
  }

  // The workspace consists of slots, skips, scratch, and the gradients of a fused backward.
  size_t slots() const { return layers_ > 1 ? 2 : 1; }
  int64_t SlotOffset(size_t i) const { return static_cast<int64_t>(i % slots()) * slot_bytes_; }
  int64_t SkipsOffset() const { return static_cast<int64_t>(slots()) * slot_bytes_; }
  int64_t ScratchOffset() const { return SkipsOffset() + skip_area_bytes_; }
  int64_t FusedGradientOffset() const { return ScratchOffset() + AlignTensor(scratch_bytes_); }

  Place InStash(int64_t bytes) { return {Place::Area::kStash, Extend(bytes, sums_.stash_bytes)}; }
  Place InWeightStash(int64_t bytes) {
    return {Place::Area::kWeightStash, Extend(bytes, sums_.weight_stash_bytes)};
  }
  Place InGradientStash(int64_t bytes) {
    return {Place::Area::kGradientStash, Extend(bytes, sums_.gradient_stash_bytes)};
  }

  // Returns the offset of `bytes` more bytes in an area. Without B and W, nothing reads what F
  // leaves there: all layers write to the same place.
  int64_t Extend(int64_t bytes, int64_t& area_bytes) const {
    if (position_.trains) return std::exchange(area_bytes, area_bytes + bytes);
    area_bytes = std::max(area_bytes, bytes);
    return 0;
  }

  const EndMemory& ends_;
  const StagePosition& position_;
  std::vector<LayerPlaces>* const places_;  // may be null
  size_t layers_ = 0;
  LayerMemory first_, last_;
  StageMemory sums_;  // resident and stashed bytes
  int64_t averaged_bytes_ = 0;
  int64_t host_value_bytes_ = 0;
  // Parts of the workspace.
  int64_t slot_bytes_ = 0, skip_area_bytes_ = 0, scratch_bytes_ = 0, fused_gradient_bytes_ = 0;
};

}  // namespace

int64_t HostValueBytes(const LayerMemory& layer, const Replication& replication) {
  const bool are_on_host =
      replication.offloads_optimizer && !replication.shards_optimizer && layer.working_bytes > 0;
  return are_on_host ? layer.parameter_bytes - layer.averaged_bytes : 0;
}

StagePosition PositionOf(const schedule::Schedule& schedule, schedule::StageId stage,
                         const Replication& replication) {
  return {.is_first = schedule.is_first(stage),
          .is_last = schedule.is_last(stage),
          .splits_backward = schedule.SplitsBackward(stage),
          .trains = schedule.HasBackward(),
          .replication = replication};
}

StageMemory LayOutStage(absl::Span<const LayerMemory> layers, const EndMemory& ends,
                        const StagePosition& position, std::vector<LayerPlaces>* places) {
  STAGECOACH_CHECK(!layers.empty(), "a stage has at least one layer");
  if (places != nullptr) places->clear();
  Layout layout(ends, position, places);
  for (const LayerMemory& layer : layers) layout.Append(layer);
  if (places != nullptr) layout.FinishPlaces();
  return layout.Stage();
}

std::vector<StageMemory> LayOutStagesFrom(absl::Span<const LayerMemory> layers,
                                          const EndMemory& ends, const StagePosition& position) {
  std::vector<StageMemory> stages;
  stages.reserve(layers.size());
  Layout layout(ends, position, /*places=*/nullptr);
  for (const LayerMemory& layer : layers) {
    layout.Append(layer);
    stages.push_back(layout.Stage());
  }
  return stages;
}

}  // namespace stagecoach::partition
