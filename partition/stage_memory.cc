#include "partition/stage_memory.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using schedule::StageMemory;

// Lays out layers from the first to the last. Offsets within the workspace are known only once the
// sizes of its parts are: Finish sets them.
class Layout {
 public:
  Layout(const StagePosition& position, size_t layers, std::vector<LayerPlaces>* places)
      : splits_backward_(position.splits_backward),
        trains_(position.trains),
        slots_(layers > 1 ? 2 : 1),
        places_(places) {}

  // The areas of a layer.
  void AddLayer(const LayerMemory& layer) {
    LayerPlaces own;
    own.stash = InStash(layer.stash_bytes);
    own.weight_stash = InWeightStash(layer.weight_stash_bytes);
    scratch_bytes_ = std::max(scratch_bytes_, layer.workspace_bytes);
    if (splits_backward_) {
      own.gradient_stash = InGradientStash(layer.gradient_stash_bytes);
    } else {
      fused_gradient_bytes_ = std::max(fused_gradient_bytes_, layer.gradient_stash_bytes);
    }
    if (layer.dropped.has_value()) PlaceDropped(layer, own);
    if (places_ != nullptr) places_->push_back(own);
  }

  // What lies between the layer that was added last and the one that follows it.
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
    if (splits_backward_ && producer.output_gradient_last_use == LastUse::kBackwardWeight) {
      output_gradient = InGradientStash(bytes);
    } else {
      slot_bytes_ = std::max(slot_bytes_, bytes);
    }
    if (places_ == nullptr) return;
    places_->back().output = output;
    places_->back().output_gradient = output_gradient;
  }

  void Finish(StageMemory& stage) {
    stage.stash_bytes = stash_bytes_;
    stage.weight_stash_bytes = weight_stash_bytes_;
    stage.gradient_stash_bytes = gradient_stash_bytes_;
    const int64_t skips_offset = static_cast<int64_t>(slots_) * slot_bytes_;
    const int64_t scratch_offset = skips_offset + skip_area_bytes_;
    const int64_t fused_gradient_offset = scratch_offset + AlignTensor(scratch_bytes_);
    stage.workspace_bytes = fused_gradient_offset + fused_gradient_bytes_;
    if (places_ == nullptr) return;
    for (size_t i = 0; i < places_->size(); ++i) {
      LayerPlaces& own = (*places_)[i];
      for (Place* const slot : {&own.output, &own.output_gradient}) {
        if (slot->area == Place::Area::kWorkspace) slot->offset = SlotOffset(i);
      }
      if (own.second_output.has_value()) own.second_output->offset = SlotOffset(i + 1);
      own.skips.offset = skips_offset;
      own.workspace.offset = scratch_offset;
      if (!splits_backward_) own.gradient_stash.offset = fused_gradient_offset;
      // What a layer drops was placed within its own part.
      if (own.stash.area == Place::Area::kWorkspace) {
        own.stash.offset += scratch_offset;
        if (!splits_backward_) own.weight_stash.offset += fused_gradient_offset;
        own.first_weight_stash.offset += splits_backward_ ? scratch_offset : fused_gradient_offset;
      }
    }
  }

 private:
  // The places of what the layer drops; those in the workspace count from the layer's part of it.
  void PlaceDropped(const LayerMemory& layer, LayerPlaces& own) {
    const DroppedStash& dropped = *layer.dropped;
    own.stash = {Place::Area::kWorkspace, layer.workspace_bytes - dropped.stash_bytes};
    own.weight_stash = own.gradient_stash;
    own.weight_stash.offset += layer.gradient_stash_bytes - dropped.weight_stash_bytes;
    own.first_weight_stash = own.weight_stash;
    if (splits_backward_) {
      own.first_weight_stash = {Place::Area::kWorkspace, layer.workspace_bytes};
      scratch_bytes_ = std::max(scratch_bytes_, layer.workspace_bytes + dropped.weight_stash_bytes);
    }
    if (layer.output_last_use == LastUse::kForward) {
      own.second_output = Place();
      slot_bytes_ = std::max(slot_bytes_, AlignTensor(layer.output_bytes));
    }
  }

  int64_t SlotOffset(size_t i) const { return static_cast<int64_t>(i % slots_) * slot_bytes_; }

  Place InStash(int64_t bytes) { return {Place::Area::kStash, Append(bytes, stash_bytes_)}; }
  Place InWeightStash(int64_t bytes) {
    return {Place::Area::kWeightStash, Append(bytes, weight_stash_bytes_)};
  }
  Place InGradientStash(int64_t bytes) {
    return {Place::Area::kGradientStash, Append(bytes, gradient_stash_bytes_)};
  }

  // The offset of so many more bytes in an area. Without B and W, nothing reads what F leaves
  // there: all layers write to the same place.
  int64_t Append(int64_t bytes, int64_t& area_bytes) const {
    if (trains_) return std::exchange(area_bytes, area_bytes + bytes);
    area_bytes = std::max(area_bytes, bytes);
    return 0;
  }

  const bool splits_backward_, trains_;
  const size_t slots_;                      // of the workspace
  std::vector<LayerPlaces>* const places_;  // may be null
  int64_t stash_bytes_ = 0, weight_stash_bytes_ = 0, gradient_stash_bytes_ = 0;
  // Of the workspace.
  int64_t slot_bytes_ = 0, skip_area_bytes_ = 0, scratch_bytes_ = 0, fused_gradient_bytes_ = 0;
};

// What is left of a layer where nothing follows F.
LayerMemory OfForward(LayerMemory layer) {
  STAGECOACH_CHECK(!layer.dropped.has_value(), "without B, no layer does F again");
  layer.optimizer_bytes = 0;
  layer.gradient_stash_bytes = 0;
  layer.input_last_use = layer.output_last_use = LastUse::kForward;
  return layer;
}

}  // namespace

StagePosition PositionOf(const schedule::Schedule& schedule, schedule::StageId stage,
                         const Replication& replication) {
  return {.is_first = schedule.is_first(stage),
          .is_last = schedule.is_last(stage),
          .splits_backward = schedule.SplitsBackward(stage),
          .trains = schedule.HasBackward(),
          .replication = replication};
}

StageMemory LayOutStage(absl::Span<const LayerMemory> given, const EndMemory& ends,
                        const StagePosition& position, std::vector<LayerPlaces>* places) {
  std::vector<LayerMemory> layers(given.begin(), given.end());
  if (!position.trains) std::transform(given.begin(), given.end(), layers.begin(), OfForward);
  STAGECOACH_CHECK(!layers.empty(), "a stage has at least one layer");
  if (places != nullptr) places->clear();
  StageMemory stage;
  int64_t averaged_bytes = 0;
  Layout layout(position, layers.size(), places);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerMemory& layer = layers[i];
    stage.parameter_bytes += layer.parameter_bytes;
    stage.optimizer_bytes += layer.optimizer_bytes;
    averaged_bytes += layer.averaged_bytes;
    stage.other_resident_bytes += layer.other_resident_bytes + layer.cache_bytes;
    layout.AddLayer(layer);
    if (i + 1 < layers.size()) layout.AddBoundary(layer, layers[i + 1]);
  }
  layout.Finish(stage);
  if (position.trains) {
    stage.optimizer_bytes = OptimizerBytes(stage.optimizer_bytes, stage.parameter_bytes,
                                           averaged_bytes, position.replication);
    stage.gradient_bytes = position.replication.gradient_copies() * stage.parameter_bytes;
    stage.reduction_bytes = ReductionBytes(stage.parameter_bytes, position.replication);
  }
  if (position.is_first) stage.other_resident_bytes += ends.feed_resident_bytes;
  if (position.is_last) {
    stage.workspace_bytes = std::max(stage.workspace_bytes, ends.loss_workspace_bytes);
    stage.other_resident_bytes += ends.loss_resident_bytes;
  }

  const LayerMemory& first = layers.front();
  const LayerMemory& last = layers.back();
  stage.input_bytes = first.input_bytes;
  stage.input_last_use = first.input_last_use;
  stage.input_gradient_bytes = position.is_first || !position.trains ? 0 : first.input_bytes;
  stage.output_bytes = last.output_bytes + last.passing_bytes;
  stage.output_last_use = last.output_last_use;
  stage.output_gradient_bytes = position.trains ? stage.output_bytes : 0;
  stage.output_gradient_last_use = last.output_gradient_last_use;
  return stage;
}

}  // namespace stagecoach::partition
