#include "schedule/grid.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedule/action_table.h"

namespace stagecoach::schedule {
namespace {

constexpr int kNotYet = -1;

// A compute action in the slots [start, end).
struct Span {
  Action action;
  int start;
  int end;
};

// Performs the compute actions as early as possible. Pre-condition: every action names a stage and
// a micro-batch of the schedule.
class Timeline {
 public:
  explicit Timeline(const Schedule& schedule)
      : schedule_(schedule),
        rows_(schedule.actions.size()),
        next_(schedule.actions.size(), 0),
        forward_end_(NumCells(), kNotYet),
        backward_end_(NumCells(), kNotYet) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t r = 0; r < rows_.size(); ++r) moved = RunRank(r) || moved;
    }
  }

  const std::vector<std::vector<Span>>& rows() const { return rows_; }
  int num_slots() const;
  // Before which action each rank stands that is not at its end; "" if all are.
  std::string Stuck() const;

 private:
  size_t NumCells() const {
    return schedule_.rank_of_stage.size() * static_cast<size_t>(schedule_.num_micro_batches);
  }
  size_t CellOf(int stage, MicroBatch micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(schedule_.num_micro_batches) +
           static_cast<size_t>(micro_batch.value());
  }
  // The slot from which the inputs of a compute action exist; kNotYet if they do not.
  int ReadyAt(const Action& action) const;
  bool RunRank(size_t rank);

  const Schedule& schedule_;
  std::vector<std::vector<Span>> rows_;  // index: rank
  std::vector<size_t> next_;             // index: rank
  std::vector<int> forward_end_;         // index: CellOf
  std::vector<int> backward_end_;        // index: CellOf
};

int Timeline::ReadyAt(const Action& action) const {
  const int stage = action.stage.value();
  const size_t cell = CellOf(stage, action.micro_batch);
  if (action.op == Op::kForward) {
    return stage == 0 ? 0 : forward_end_[CellOf(stage - 1, action.micro_batch)];
  }
  if (action.op == Op::kBackwardWeight) return backward_end_[cell];
  if (forward_end_[cell] == kNotYet || schedule_.is_last(action.stage)) return forward_end_[cell];
  return backward_end_[CellOf(stage + 1, action.micro_batch)];
}

// Performs what `rank` can; returns whether that was anything.
bool Timeline::RunRank(size_t rank) {
  const std::vector<Action>& list = schedule_.actions[rank];
  std::vector<Span>& row = rows_[rank];
  const size_t before = next_[rank];
  for (size_t& next = next_[rank]; next < list.size(); ++next) {
    const Action& action = list[next];
    if (!IsCompute(action.op)) continue;
    const int ready = ReadyAt(action);
    if (ready == kNotYet) break;
    const int start = std::max(ready, row.empty() ? 0 : row.back().end);
    const int end = start + (action.op == Op::kBackward ? 2 : 1);
    row.push_back({action, start, end});
    const size_t cell = CellOf(action.stage.value(), action.micro_batch);
    if (action.op == Op::kForward) forward_end_[cell] = end;
    if (action.op == Op::kBackwardInput || action.op == Op::kBackward) backward_end_[cell] = end;
  }
  return next_[rank] != before;
}

int Timeline::num_slots() const {
  int slots = 0;
  for (const std::vector<Span>& row : rows_) {
    if (!row.empty()) slots = std::max(slots, row.back().end);
  }
  return slots;
}

std::string Timeline::Stuck() const {
  std::string text;
  for (size_t r = 0; r < next_.size(); ++r) {
    if (next_[r] == schedule_.actions[r].size()) continue;
    absl::StrAppend(&text, text.empty() ? "stuck: rank " : "; rank ", r, " before ",
                    ToString(schedule_.actions[r][next_[r]]));
  }
  return text.empty() ? text : text + "\n";
}

bool SharesARank(const Schedule& schedule) {
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    if (schedule.StagesOf(rank).size() > 1) return true;
  }
  return false;
}

std::string CellText(const Action& action, bool with_stage) {
  const char* op = action.op == Op::kBackward ? "B" : OpName(action.op);
  if (!with_stage) return absl::StrCat(op, action.micro_batch.value());
  return absl::StrCat(op, action.stage.value(), ".", action.micro_batch.value());
}

std::string Padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

// The slots that are drawn: [0, head) and [tail, num_slots).
struct Cut {
  int head;
  int tail;
};

Cut CutToFit(int num_slots, int columns_left, int columns_per_slot) {
  if (num_slots * columns_per_slot <= columns_left) return {num_slots, num_slots};
  constexpr int kMarkColumns = 2;
  const int kept = std::max(2, (columns_left - kMarkColumns) / columns_per_slot);
  if (kept >= num_slots) return {num_slots, num_slots};
  return {kept - kept / 2, num_slots - kept / 2};
}

std::string RowText(const std::vector<Span>& row, const Cut& cut, int num_slots, size_t width,
                    bool with_stage) {
  std::string text;
  auto span = row.begin();
  for (int slot = 0; slot < num_slots; ++slot) {
    if (slot == cut.head) {
      text += " ~";
      slot = cut.tail;
    }
    while (span != row.end() && span->end <= slot) ++span;
    const bool busy = span != row.end() && span->start <= slot;
    absl::StrAppend(&text, " ", Padded(busy ? CellText(span->action, with_stage) : "..", width));
  }
  return text;
}

}  // namespace

std::string ToGrid(const Schedule& schedule, const GridOptions& options) {
  if (const auto table = ActionTable::Build(schedule); !table.ok()) {
    return absl::StrCat("not a schedule: ", table.status().message(), "\n");
  }
  const Timeline timeline(schedule);
  const bool with_stage = SharesARank(schedule);
  size_t width = 2;
  for (const std::vector<Span>& row : timeline.rows()) {
    for (const Span& span : row) width = std::max(width, CellText(span.action, with_stage).size());
  }
  const size_t rank_width = absl::StrCat(schedule.num_ranks() - 1).size();
  const int prefix_columns = static_cast<int>(rank_width) + 7;  // "rank 0 |"
  const int num_slots = timeline.num_slots();
  const Cut cut =
      CutToFit(num_slots, options.max_columns - prefix_columns, static_cast<int>(width) + 1);

  std::string grid;
  for (size_t r = 0; r < timeline.rows().size(); ++r) {
    absl::StrAppend(&grid, "rank ", Padded(absl::StrCat(r), rank_width), " |",
                    RowText(timeline.rows()[r], cut, num_slots, width, with_stage));
    while (grid.back() == ' ') grid.pop_back();
    grid += "\n";
  }
  if (cut.head < cut.tail) {
    absl::StrAppend(&grid, "~ ", cut.tail - cut.head, " of ", num_slots, " slots left out\n");
  }
  return grid + timeline.Stuck();
}

}  // namespace stagecoach::schedule
