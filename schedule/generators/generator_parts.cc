#include "schedule/generators/generator_parts.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::schedule {

absl::Status Refuse(absl::string_view name, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("schedule ", name, ": ", reason));
}

absl::StatusOr<Schedule> EmptySchedule(absl::string_view name, const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(const Generator* const generator, FindGenerator(name));
  if (shape.ranks < 1) {
    return Refuse(name, absl::StrCat("needs at least 1 rank, got ", shape.ranks));
  }
  if (shape.micro_batches < 1) {
    return Refuse(name, absl::StrCat("needs at least 1 micro-batch, got ", shape.micro_batches));
  }
  if (shape.chunks < 0) {
    return Refuse(name, absl::StrCat("needs at least 1 chunk per rank, got ", shape.chunks));
  }
  if (shape.chunks != 0 && shape.chunks != generator->chunks && !generator->any_chunks) {
    return Refuse(
        name, absl::StrCat("has ", generator->chunks, generator->chunks == 1 ? " chunk" : " chunks",
                           " per rank, not ", shape.chunks));
  }
  const int chunks = shape.chunks != 0 ? shape.chunks : generator->chunks;
  if (shape.micro_batches > kMaxPasses / shape.ranks / chunks) {
    return Refuse(name, absl::StrCat(shape.ranks, " ranks x ", chunks, " chunks x ",
                                     shape.micro_batches, " micro-batches exceed ", kMaxPasses,
                                     " forward passes; use fewer of them"));
  }
  if (shape.ranks > kMaxPasses / shape.ranks / chunks) {
    return Refuse(
        name, absl::StrCat(shape.ranks, " ranks with ", chunks, chunks == 1 ? " chunk" : " chunks",
                           " each are too many; use at "
                           "most 4096 / sqrt(chunks)"));
  }
  Schedule schedule;
  schedule.name = std::string(name);
  schedule.num_micro_batches = shape.micro_batches;
  schedule.rank_of_stage = PlaceStages(generator->placement, shape.ranks, chunks);
  schedule.actions.resize(static_cast<size_t>(shape.ranks));
  return schedule;
}

RankWriter::RankWriter(Schedule& schedule, Rank rank)
    : list_(schedule.actions[static_cast<size_t>(rank.value())]),
      stages_(schedule.StagesOf(rank)),
      counts_(stages_.size()) {}

MicroBatch RankWriter::Next(Op op, int chunk) {
  Counts& counts = counts_[static_cast<size_t>(chunk)];
  switch (op) {
    case Op::kForward:
      return MicroBatch(counts.forward++);
    case Op::kBackwardInput:
      return MicroBatch(counts.backward_input++);
    case Op::kBackwardWeight:
      return MicroBatch(counts.backward_weight++);
    default:
      ++counts.backward_weight;
      return MicroBatch(counts.backward_input++);
  }
}

void RankWriter::Add(Op op, int chunk) {
  list_.push_back(
      {.op = op, .stage = stages_[static_cast<size_t>(chunk)], .micro_batch = Next(op, chunk)});
}

void RankWriter::AddOverlapped(int forward_chunk, Op backward, int backward_chunk) {
  Add(Op::kForward, forward_chunk);
  list_.back().overlaps_next = true;
  Add(backward, backward_chunk);
}

int RankWriter::count(Op op, int chunk) const {
  const Counts& counts = counts_[static_cast<size_t>(chunk)];
  switch (op) {
    case Op::kForward:
      return counts.forward;
    case Op::kBackwardWeight:
      return counts.backward_weight;
    default:
      return counts.backward_input;
  }
}

void KeepFirst(int micro_batches, Schedule& schedule) {
  schedule.num_micro_batches = micro_batches;
  for (std::vector<Action>& list : schedule.actions) {
    list.erase(std::remove_if(list.begin(), list.end(),
                              [micro_batches](const Action& action) {
                                return action.micro_batch.value() >= micro_batches;
                              }),
               list.end());
  }
}

}  // namespace stagecoach::schedule
