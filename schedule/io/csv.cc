#include "schedule/io/csv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "schedule/generators/generators.h"
#include "schedule/io/file_check.h"
#include "schedule/transforms/lowering.h"

namespace stagecoach::schedule {
namespace {

constexpr absl::string_view kOverlap = "OVERLAP_F_B";

struct Spelling {
  absl::string_view name;
  Op op;
};
constexpr Spelling kSpellings[] = {
    {"F", Op::kForward},
    {"I", Op::kBackwardInput},
    {"W", Op::kBackwardWeight},
    {"B", Op::kBackward},
    {"RECV_F", Op::kReceiveActivation},
    {"SEND_F", Op::kSendActivation},
    {"RECV_B", Op::kReceiveGradient},
    {"SEND_B", Op::kSendGradient},
    {"UNSHARD", Op::kUnshard},
    {"RESHARD", Op::kReshard},
    {"REDUCE_GRAD", Op::kReduceGradients},
};
// Actions that PyTorch waits for in a separate cell, while a run here waits by itself.
constexpr Spelling kWaits[] = {
    {"WAIT_SEND_F", Op::kSendActivation},
    {"WAIT_SEND_B", Op::kSendGradient},
    {"WAIT_REDUCE_GRAD", Op::kReduceGradients},
};

// The actions of a row that PyTorch must wait for and has not yet waited for.
using Unawaited = absl::btree_set<Action>;

bool IsAwaited(Op op) {
  return std::any_of(std::begin(kWaits), std::end(kWaits),
                     [op](const Spelling& wait) { return wait.op == op; });
}

// Returns as much of a cell as an error should show.
std::string Quoted(absl::string_view cell) {
  constexpr size_t kShown = 40;
  return absl::StrCat("\"", absl::CHexEscape(cell.substr(0, kShown)),
                      cell.size() > kShown ? "...\"" : "\"");
}

// Returns the cell of an action, without its overlap.
std::string CellOf(const Action& action, absl::Span<const Spelling> spellings = kSpellings) {
  const auto spelling =
      std::find_if(spellings.begin(), spellings.end(),
                   [&](const Spelling& candidate) { return candidate.op == action.op; });
  STAGECOACH_CHECK(spelling != spellings.end(), ToString(action));
  std::string cell = absl::StrCat(action.stage.value(), spelling->name);
  if (HasMicroBatch(action.op)) absl::StrAppend(&cell, action.micro_batch.value());
  return cell;
}

absl::Status NoAction(absl::string_view cell) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(cell),
      " is not an action; expected {stage}{F|I|W|B}{micro-batch}, "
      "{stage}{SEND_F|RECV_F|SEND_B|RECV_B}{micro-batch}, {stage}{UNSHARD|RESHARD|REDUCE_GRAD}, "
      "WAIT_ before SEND_F, SEND_B or REDUCE_GRAD, or a pair such as (0F1;0B0)OVERLAP_F_B"));
}

// Removes the digits at the start of `text` and returns their number; kMaxPasses and above yield
// kMaxPasses.
std::optional<int32_t> TakeNumber(absl::string_view& text) {
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text[0])))
    return std::nullopt;
  int32_t number = 0;
  while (!text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) {
    number = std::min(10 * number + (text[0] - '0'), kMaxPasses);
    text.remove_prefix(1);
  }
  return number;
}

// Parses one action; `spellings` are those that are allowed here.
absl::StatusOr<Action> ParseAction(absl::string_view text,
                                   absl::Span<const Spelling> spellings = kSpellings) {
  absl::string_view rest = text;
  const std::optional<int32_t> stage = TakeNumber(rest);
  const absl::string_view name = rest.substr(0, rest.find_first_of("0123456789"));
  rest.remove_prefix(name.size());
  const std::optional<int32_t> micro_batch = TakeNumber(rest);
  const auto spelling =
      std::find_if(spellings.begin(), spellings.end(),
                   [name](const Spelling& candidate) { return candidate.name == name; });
  if (spelling == spellings.end() || !stage.has_value() || !rest.empty() ||
      micro_batch.has_value() != HasMicroBatch(spelling->op)) {
    return NoAction(text);
  }
  if (std::max(*stage, micro_batch.value_or(0)) >= kMaxPasses) {
    return absl::InvalidArgumentError(absl::StrCat("the stage or micro-batch of ", Quoted(text),
                                                   " is above the limit of ", kMaxPasses - 1));
  }
  return Action{.op = spelling->op,
                .stage = StageId(*stage),
                .micro_batch = MicroBatch(micro_batch.value_or(-1))};
}

absl::Status ParseWait(absl::string_view cell, Unawaited& unawaited) {
  ASSIGN_OR_RETURN(const Action awaited, ParseAction(cell, kWaits));
  if (unawaited.erase(awaited) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(cell), " has no ", CellOf(awaited), " to wait for before it in the row"));
}

// Appends the one or two actions of a non-empty cell; none if it is a wait.
absl::Status ParseCell(absl::string_view cell, std::vector<Action>& actions, Unawaited& unawaited) {
  if (absl::StrContains(cell, "WAIT_")) return ParseWait(cell, unawaited);
  absl::string_view pair = cell;
  if (!absl::ConsumePrefix(&pair, "(")) {
    ASSIGN_OR_RETURN(const Action action, ParseAction(cell));
    actions.push_back(action);
    if (IsAwaited(action.op)) unawaited.insert(action);
    return absl::OkStatus();
  }
  if (!absl::ConsumeSuffix(&pair, kOverlap)) return NoAction(cell);
  pair = absl::StripTrailingAsciiWhitespace(pair);
  const size_t middle = pair.find(';');
  if (!absl::ConsumeSuffix(&pair, ")") || middle == absl::string_view::npos) return NoAction(cell);
  ASSIGN_OR_RETURN(Action first, ParseAction(absl::StripAsciiWhitespace(pair.substr(0, middle))));
  ASSIGN_OR_RETURN(const Action second,
                   ParseAction(absl::StripAsciiWhitespace(pair.substr(middle + 1))));
  first.overlaps_next = true;
  actions.push_back(first);
  actions.push_back(second);
  return absl::OkStatus();
}

// The contents of the text, and their places.
struct Table {
  Schedule schedule;
  // The column of each rank's actions that have a cell, in bytes from 1; then the end of its row.
  std::vector<std::vector<int32_t>> columns;

  int num_rows() const { return schedule.num_ranks(); }
};

std::string PlaceOf(const Table& table, Rank rank, size_t index) {
  const std::vector<int32_t>& columns = table.columns[static_cast<size_t>(rank.value())];
  const size_t column = std::min(index, columns.size() - 1);
  return absl::StrCat(rank.value() + 1, ":", columns[column], " (",
                      column + 1 == columns.size() ? "end of the row"
                                                   : CellOf(table.schedule.list_of(rank)[column]),
                      ")");
}

absl::Status ParseRow(absl::string_view row, std::vector<Action>& actions,
                      std::vector<int32_t>& columns) {
  Unawaited unawaited;
  const auto column_of = [row](const char* place) {
    return static_cast<int32_t>(place - row.data()) + 1;
  };
  int32_t end = 1;
  for (absl::string_view cell : absl::StrSplit(row, ',')) {
    cell = absl::StripAsciiWhitespace(cell);
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = absl::StripAsciiWhitespace(cell.substr(1, cell.size() - 2));
    }
    if (cell.empty()) continue;
    const int32_t column = column_of(cell.data());
    RETURN_IF_ERROR(base::Annotate(ParseCell(cell, actions, unawaited), absl::StrCat(column)));
    columns.resize(actions.size(), column);
    end = column_of(cell.data() + cell.size());
  }
  columns.push_back(end);
  if (!actions.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("1: the row has no action; every rank has a stage");
}

absl::StatusOr<Table> ParseTable(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  Table table;
  for (const absl::string_view row :
       absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n')) {
    if (table.num_rows() == kMaxFileRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat(kMaxFileRanks + 1, ":1: there may be at most ", kMaxFileRanks, " rows"));
    }
    const absl::Status status =
        ParseRow(row, table.schedule.actions.emplace_back(), table.columns.emplace_back());
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(table.num_rows(), ":", status.message()));
    }
  }
  return table;
}

// The first action of the table with the largest number.
struct Largest {
  int32_t number = -1;
  Rank rank;
  size_t index = 0;
};
template <typename NumberOf>
Largest FindLargest(const Table& table, NumberOf number_of) {
  Largest largest;
  for (Rank rank(0); rank.value() < table.num_rows(); ++rank) {
    const std::vector<Action>& list = table.schedule.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      const int32_t number = number_of(list[i]);
      if (number > largest.number) largest = {number, rank, i};
    }
  }
  return largest;
}

// Returns the row of each stage. A hostile stage number may be far above the number of actions, so
// no more is allocated than the actions could fill.
absl::StatusOr<std::vector<Rank>> FindPlacement(const Table& table) {
  const auto num_actions = static_cast<size_t>(table.schedule.num_actions());
  const Largest last = FindLargest(table, [](const Action& a) { return a.stage.value(); });
  std::vector<Rank> rank_of_stage(std::min(num_actions, static_cast<size_t>(last.number) + 1));
  for (Rank rank(0); rank.value() < table.num_rows(); ++rank) {
    const std::vector<Action>& list = table.schedule.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      const auto stage = static_cast<size_t>(list[i].stage.value());
      if (stage >= rank_of_stage.size()) continue;
      if (!rank_of_stage[stage].valid()) rank_of_stage[stage] = rank;
      if (rank_of_stage[stage] == rank) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          PlaceOf(table, rank, i), ": stage ", stage, " is in row ",
          rank_of_stage[stage].value() + 1, " already; all actions of a stage are in one row"));
    }
  }
  const auto missing = std::find(rank_of_stage.begin(), rank_of_stage.end(), Rank());
  if (missing == rank_of_stage.end()) return rank_of_stage;
  return absl::InvalidArgumentError(
      absl::StrCat(PlaceOf(table, last.rank, last.index), ": no row has an action of stage ",
                   missing - rank_of_stage.begin(), "; stages count from 0, without gaps"));
}

// Drops the sums over replicas that PyTorch's GPipe has even among computations without messages.
// Lowering adds them where they are needed.
void DropSumsWithoutMessages(Table& table) {
  std::vector<std::vector<Action>>& lists = table.schedule.actions;
  const auto is_sum = [](const Action& a) { return a.op == Op::kReduceGradients; };
  const auto computes = [&](const std::vector<Action>& list) {
    const auto is_known = [&](const Action& a) { return IsCompute(a.op) || is_sum(a); };
    return std::all_of(list.begin(), list.end(), is_known) &&
           !std::all_of(list.begin(), list.end(), is_sum);
  };
  if (lists.size() == 1 || !std::all_of(lists.begin(), lists.end(), computes)) return;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    std::vector<Action> kept;
    std::vector<int32_t> columns;
    for (size_t i = 0; i < lists[rank].size(); ++i) {
      if (is_sum(lists[rank][i])) continue;
      kept.push_back(lists[rank][i]);
      columns.push_back(table.columns[rank][i]);
    }
    columns.push_back(table.columns[rank].back());
    lists[rank] = std::move(kept);
    table.columns[rank] = std::move(columns);
  }
}

// Refuses PyTorch's Schedule1F1B, which counts the forward passes of its last rank from 1 and the
// backward passes from 0.
absl::Status CheckIsNotSchedule1F1B(const Table& table) {
  const Rank last(table.num_rows() - 1);
  const std::vector<Action>& list = table.schedule.list_of(last);
  std::vector<int32_t> forward, backward;
  for (const Action& action : list) {
    if (action.op == Op::kForward) forward.push_back(action.micro_batch.value());
    if (action.op == Op::kBackward) backward.push_back(action.micro_batch.value());
  }
  if (forward.empty() || forward.size() + backward.size() != list.size()) return absl::OkStatus();
  const auto counts_from = [](const std::vector<int32_t>& numbers, int32_t first) {
    return std::all_of(numbers.begin(), numbers.end(), [&](int32_t n) { return n == first++; });
  };
  if (forward.size() != backward.size() || !counts_from(forward, 1) || !counts_from(backward, 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      PlaceOf(table, last, 0),
      ": the last rank skips micro-batch 0, as the order that PyTorch's Schedule1F1B gives: "
      "PyTorch "
      "itself cannot add messages to it; take that of ScheduleInterleaved1F1B with one stage per "
      "rank, or 1f1b"));
}

}  // namespace

absl::StatusOr<Schedule> ParseScheduleCsv(absl::string_view text, absl::string_view name) {
  ASSIGN_OR_RETURN(Table table, ParseTable(text));
  Schedule& schedule = table.schedule;
  schedule.name = std::string(name);
  DropSumsWithoutMessages(table);
  RETURN_IF_ERROR(CheckIsNotSchedule1F1B(table));
  ASSIGN_OR_RETURN(schedule.rank_of_stage, FindPlacement(table));
  const Largest last = FindLargest(table, [](const Action& a) { return a.micro_batch.value(); });
  schedule.num_micro_batches = last.number + 1;
  if (schedule.num_micro_batches == 0) {
    return absl::InvalidArgumentError("1:1: no action of the file has a micro-batch");
  }
  RETURN_IF_ERROR(base::Annotate(CheckSize(schedule), PlaceOf(table, last.rank, last.index)));
  if (schedule.IsLowered() && schedule.HasBackward()) AppendToEachStage(Op::kStep, schedule);
  RETURN_IF_ERROR(ProveFromFile(
      schedule, [&table](Rank rank, size_t index) { return PlaceOf(table, rank, index); }));
  return std::move(table.schedule);
}

namespace {

// A rank's row, with the cells in which PyTorch waits: for an activation that was sent, once its
// gradient has come back and been used, so that the wait takes no time; for a sum over replicas,
// before the next one, since PyTorch has at most one at a time; for everything else, at the end.
class Row {
 public:
  void Add(const Action& action) {
    if (action.op == Op::kReduceGradients) Await(std::exchange(reduced_, action));
    cells_.push_back(CellOf(action));
    if (IsAwaited(action.op)) unawaited_.insert(action);
    AwaitActivationOf(action);
  }

  void AddPair(const Action& first, const Action& second) {
    cells_.push_back(absl::StrCat("(", CellOf(first), ";", CellOf(second), ")", kOverlap));
    AwaitActivationOf(first);
    AwaitActivationOf(second);
  }

  std::string Finish() {
    while (!unawaited_.empty()) Await(Action(*unawaited_.begin()));
    return absl::StrCat(absl::StrJoin(cells_, ","), "\n");
  }

 private:
  void Await(const Action& action) {
    if (unawaited_.erase(action) > 0) cells_.push_back(CellOf(action, kWaits));
  }

  void AwaitActivationOf(const Action& action) {
    if (action.op != Op::kBackwardInput && action.op != Op::kBackward) return;
    Await({.op = Op::kSendActivation, .stage = action.stage, .micro_batch = action.micro_batch});
  }

  std::vector<std::string> cells_;
  Unawaited unawaited_;
  Action reduced_;  // the last one
};

}  // namespace

std::string ToScheduleCsv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& list : schedule.actions) {
    Row row;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].op == Op::kStep || IsCollective(list[i].op) || MovesStash(list[i].op)) continue;
      if (IsCompute(list[i].op) && list[i].overlaps_next) {
        STAGECOACH_CHECK(i + 1 < list.size(), ToString(list[i]));
        row.AddPair(list[i], list[i + 1]);
        ++i;
      } else {
        // PyTorch has no groups of transfers.
        row.Add({.op = list[i].op, .stage = list[i].stage, .micro_batch = list[i].micro_batch});
      }
    }
    text += row.Finish();
  }
  return text;
}

}  // namespace stagecoach::schedule
