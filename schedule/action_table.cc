#include "schedule/action_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::schedule {
namespace {

absl::Status CheckPlacement(const Schedule& schedule) {
  if (schedule.num_stages() < 1 || schedule.num_micro_batches < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("a schedule needs at least 1 stage and 1 micro-batch, this one has ",
                     schedule.num_stages(), " and ", schedule.num_micro_batches));
  }
  for (StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of(stage).value();
    if (rank < 0 || rank >= schedule.num_ranks()) {
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", stage.value(), " is placed on rank ", rank,
                       ", but the schedule has ", schedule.num_ranks(), " ranks"));
    }
  }
  return absl::OkStatus();
}

// What is wrong with the names in an action on `rank`; "" if nothing.
std::string Misnomer(const Schedule& schedule, Rank rank, const Action& action) {
  if (action.stage.value() < 0 || action.stage.value() >= schedule.num_stages()) {
    return absl::StrCat("the schedule has ", schedule.num_stages(), " stages");
  }
  if (schedule.rank_of(action.stage) != rank) {
    return absl::StrCat("that stage is on rank ", schedule.rank_of(action.stage).value());
  }
  if (action.op == Op::kStep) {
    return action.micro_batch.valid() ? "a STEP has no micro-batch" : "";
  }
  if (action.micro_batch.value() < 0 || action.micro_batch.value() >= schedule.num_micro_batches) {
    return absl::StrCat("the schedule has ", schedule.num_micro_batches, " micro-batches");
  }
  if (!IsTransfer(action.op)) return "";
  const StageId neighbour = OtherEnd(action).stage;
  if (neighbour.value() < 0 || neighbour.value() >= schedule.num_stages()) {
    return "the stage has no neighbour on that side";
  }
  return schedule.rank_of(neighbour) == rank ? "the neighbouring stage is on the same rank" : "";
}

}  // namespace

ActionTable::ActionTable(const Schedule& schedule)
    : first_cell_(static_cast<size_t>(schedule.num_stages())),
      steps_(static_cast<size_t>(schedule.num_stages()), kNowhere) {}

absl::StatusOr<ActionTable> ActionTable::Build(const Schedule& schedule) {
  RETURN_IF_ERROR(CheckPlacement(schedule));
  ActionTable table(schedule);
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    RETURN_IF_ERROR(table.AddRank(schedule, rank));
  }
  return table;
}

absl::StatusOr<ActionTable> ActionTable::BuildForRank(const Schedule& schedule, Rank rank) {
  RETURN_IF_ERROR(CheckPlacement(schedule));
  ActionTable table(schedule);
  RETURN_IF_ERROR(table.AddRank(schedule, rank));
  return table;
}

absl::Status ActionTable::AddRank(const Schedule& schedule, Rank rank) {
  const std::vector<StageId> stages = schedule.StagesOf(rank);
  const std::vector<Action>& list = schedule.list_of(rank);
  const size_t cells_per_stage = static_cast<size_t>(schedule.num_micro_batches);
  if (list.size() < stages.size() * cells_per_stage) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank.value(), " has ", list.size(), " actions, fewer than the ",
                     stages.size() * cells_per_stage, " forward passes of its ", stages.size(),
                     " stages for ", cells_per_stage, " micro-batches"));
  }
  Cell empty;
  empty.fill(kNowhere);
  for (const StageId stage : stages) {
    first_cell_[static_cast<size_t>(stage.value())] = places_.size();
    places_.resize(places_.size() + cells_per_stage, empty);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    RETURN_IF_ERROR(AddAction(schedule, rank, static_cast<int32_t>(i)));
  }
  return absl::OkStatus();
}

absl::Status ActionTable::AddAction(const Schedule& schedule, Rank rank, int32_t position) {
  const Action& action = schedule.list_of(rank)[static_cast<size_t>(position)];
  if (const std::string misnomer = Misnomer(schedule, rank, action); !misnomer.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Where(schedule, rank, position), ": ", misnomer));
  }
  const auto record = [&](int32_t& place) -> absl::Status {
    if (place != kNowhere) {
      return absl::FailedPreconditionError(absl::StrCat(
          Where(schedule, rank, position), ": done before, at position ", place, "; remove one"));
    }
    place = position;
    return absl::OkStatus();
  };
  if (action.op == Op::kStep) return record(steps_[static_cast<size_t>(action.stage.value())]);
  Cell& cell = places_[CellOf(action.stage, action.micro_batch)];
  if (action.op != Op::kBackward) return record(cell[static_cast<size_t>(action.op)]);
  RETURN_IF_ERROR(record(cell[static_cast<size_t>(Op::kBackwardInput)]));
  return record(cell[static_cast<size_t>(Op::kBackwardWeight)]);
}

std::string Where(const Schedule& schedule, Rank rank, int32_t position) {
  return absl::StrCat("rank ", rank.value(), ", position ", position, " (",
                      ToString(schedule.list_of(rank)[static_cast<size_t>(position)]), ")");
}

}  // namespace stagecoach::schedule
