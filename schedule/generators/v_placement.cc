// Schedules with two chunks per rank in V placement: ZB-V and DualPipeV of generators.h. Chunk 0 is
// the one on the way down the ranks, chunk 1 the one on the way up.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/generators/generator_parts.h"
#include "schedule/generators/generators.h"

namespace stagecoach::schedule {
namespace {

constexpr Op F = Op::kForward;
constexpr Op B = Op::kBackwardInput;
constexpr Op W = Op::kBackwardWeight;
constexpr Op BW = Op::kBackward;

// Writes the list of rank r of p with m >= 2p - 1 micro-batches.
void WriteZeroBubbleV(int p, int r, int m, RankWriter writer) {
  for (int i = 0; i < 2 * (p - r) - 1; ++i) writer.Add(F, 0);
  for (int i = 0; i < r; ++i) {
    writer.Add(F, 1);
    writer.Add(F, 0);
  }
  const auto forward_backward_weight = [&](int chunk) {
    if (writer.count(F, chunk) < m) writer.Add(F, chunk);
    writer.Add(B, chunk);
    writer.Add(W, chunk);
  };
  for (int i = 0; i < p - r; ++i) forward_backward_weight(1);
  while (writer.count(F, 1) < m) {
    forward_backward_weight(0);
    forward_backward_weight(1);
  }
  for (int i = 0; i < r; ++i) {
    writer.Add(B, 0);
    writer.Add(B, 1);
  }
  for (int i = 0; i < p - r; ++i) {
    writer.Add(B, 0);
    writer.Add(W, 0);
  }
  for (const int chunk : {1, 0}) {
    while (writer.count(W, chunk) < m) writer.Add(W, chunk);
  }
}

// Writes the list of rank r of p with m >= 2p micro-batches, in the eight steps of the published
// description.
class DualPipeVWriter {
 public:
  DualPipeVWriter(int p, int r, int m, RankWriter writer)
      : p_(p), r_(r), m_(m), writer_(std::move(writer)) {}

  void Write() {
    for (int i = 0; i < 2 * (p_ - r_ - 1); ++i) writer_.Add(F, 0);
    for (int i = 0; i < r_ + 1; ++i) {
      writer_.Add(F, 0);
      writer_.Add(F, 1);
    }
    for (int i = 0; i < p_ - r_ - 1; ++i) {
      AddB(1);
      AddW();
      writer_.Add(F, 1);
    }
    for (int i = 0; i < m_ - 2 * p_ + r_ + 1; ++i) {
      if (i == 0 && r_ == p_ - 1) {
        // Overlapping the first pair of the last rank would only delay its backward pass.
        writer_.Add(F, 0);
        writer_.Add(BW, 1);
      } else {
        writer_.AddOverlapped(0, BW, 1);
      }
      writer_.AddOverlapped(1, BW, 0);
    }
    for (int i = 0; i < p_ - r_ - 1; ++i) {
      writer_.Add(BW, 1);
      writer_.AddOverlapped(1, BW, 0);
    }
    Drain();
  }

 private:
  // Adds the remaining backward passes, from the middle on with W apart.
  void Drain() {
    bool splits = false;
    for (int i = 0; i < r_ + 1; ++i) {
      const bool middle = i == (r_ + 1) / 2;
      if (middle && r_ % 2 == 1) splits = true;
      splits ? AddB(1) : writer_.Add(BW, 1);
      if (middle && r_ % 2 == 0) splits = true;
      splits ? AddB(0) : writer_.Add(BW, 0);
    }
    for (int i = 0; i < p_ - r_ - 1; ++i) {
      AddW();
      AddB(0);
    }
    while (next_weight_ < waiting_weights_.size()) AddW();
  }

  void AddB(int chunk) {
    writer_.Add(B, chunk);
    waiting_weights_.push_back(chunk);
  }
  void AddW() { writer_.Add(W, waiting_weights_[next_weight_++]); }

  const int p_, r_, m_;
  RankWriter writer_;
  std::vector<int> waiting_weights_;  // chunks of all B so far
  size_t next_weight_ = 0;            // the first of them without its W
};

}  // namespace

absl::StatusOr<Schedule> ZeroBubbleV(const ScheduleShape& shape) {
  RETURN_IF_ERROR(EmptySchedule("zb-v", shape).status());
  ScheduleShape full = shape;
  full.micro_batches = std::max(shape.micro_batches, 2 * shape.ranks - 1);
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("zb-v", full));
  for (int r = 0; r < shape.ranks; ++r) {
    WriteZeroBubbleV(shape.ranks, r, full.micro_batches, RankWriter(schedule, Rank(r)));
  }
  KeepFirst(shape.micro_batches, schedule);
  return schedule;
}

absl::StatusOr<Schedule> DualPipeV(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, EmptySchedule("dualpipe-v", shape));
  if (shape.micro_batches < 2 * shape.ranks) {
    return Refuse("dualpipe-v", absl::StrCat("needs at least 2 micro-batches per rank: ",
                                             shape.micro_batches, " and ", shape.ranks));
  }
  for (int r = 0; r < shape.ranks; ++r) {
    DualPipeVWriter(shape.ranks, r, shape.micro_batches, RankWriter(schedule, Rank(r))).Write();
  }
  return schedule;
}

}  // namespace stagecoach::schedule
