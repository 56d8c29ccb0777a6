#include "partition/evaluate/stage_peaks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "partition/plan/rank_report.h"

namespace stagecoach::partition {
namespace {

using schedule::AlignBlock;
using schedule::LastUse;
using schedule::Rank;
using schedule::StageId;
using schedule::StageMemory;

// Without what a rank has once for all its stages.
int64_t ResidentBytes(const StageMemory& memory) {
  return AlignBlock(memory.parameter_bytes) + AlignBlock(memory.gradient_bytes) +
         AlignBlock(memory.optimizer_bytes) + AlignBlock(memory.other_resident_bytes);
}

// What of a stage lives while it is performed forward, or while another stage of its rank is, with
// `stashed` micro-batches between F and B. Buffers that transfers keep longer come on top.
int64_t ForwardBytes(const StageMemory& memory, int stashed, bool is_acting, bool is_last,
                     bool has_input_of_its_own) {
  const auto live = [&](int64_t bytes, LastUse last_use) {
    const int now = is_acting ? 1 : 0;
    return AlignBlock(bytes) * (last_use == LastUse::kForward ? now : stashed);
  };
  int64_t bytes = live(memory.output_bytes, memory.output_last_use) +
                  live(memory.stash_bytes, LastUse::kBackwardInput) +
                  live(memory.weight_stash_bytes, LastUse::kBackwardWeight);
  if (has_input_of_its_own) bytes += live(memory.input_bytes, memory.input_last_use);
  if (is_last) bytes += live(memory.output_gradient_bytes, LastUse::kBackwardInput);
  return bytes;
}

// Returns by how much an action changes the number of micro-batches whose stash its stage has on
// its device.
int StashChange(schedule::Op op) {
  switch (op) {
    case schedule::Op::kForward:
    case schedule::Op::kFetch:
      return 1;
    case schedule::Op::kBackwardInput:
    case schedule::Op::kBackward:
    case schedule::Op::kRelease:
      return -1;
    default:
      return 0;
  }
}

}  // namespace

std::vector<int> PeakStashes(const schedule::Schedule& training) {
  std::vector<int> stashed(training.num_stages());
  std::vector<int> peaks(training.num_stages());
  if (!training.HasBackward()) return peaks;
  for (const std::vector<schedule::Action>& list : training.actions) {
    for (const schedule::Action& action : list) {
      const int change = StashChange(action.op);
      if (change == 0) continue;
      const auto stage = static_cast<size_t>(action.stage.value());
      stashed[stage] += change;
      if (action.op != schedule::Op::kForward) continue;
      peaks[stage] = std::max(peaks[stage], stashed[stage]);
    }
  }
  return peaks;
}

StagePeaks::StagePeaks(LoweredSchedules lowered)
    : lowered_(std::make_shared<const LoweredSchedules>(std::move(lowered))),
      in_flight_(PeakStashes(lowered_->training)) {
  const schedule::Schedule& training = lowered_->training;
  for (StageId stage(0); stage.value() < training.num_stages(); ++stage) {
    positions_.push_back(PositionOf(training, stage, lowered_->replication));
  }
  for (Rank rank(0); rank.value() < training.num_ranks(); ++rank) {
    stages_of_.push_back(training.StagesOf(rank));
    const std::vector<schedule::Action>& list = training.list_of(rank);
    moments_.push_back(FullestMoments(list, stages_of_.back()));
  }
}

std::vector<StagePeaks::Moment> StagePeaks::FullestMoments(
    const std::vector<schedule::Action>& list, const std::vector<StageId>& stages) {
  std::vector<Moment> fullest;
  Moment now = {.acting = 0, .in_flight = std::vector<int>(stages.size(), 0)};
  const auto is_within = [](const Moment& a, const Moment& b) {
    return a.acting == b.acting &&
           std::equal(a.in_flight.begin(), a.in_flight.end(), b.in_flight.begin(),
                      [](int of_a, int of_b) { return of_a <= of_b; });
  };
  for (const schedule::Action& action : list) {
    const int change = StashChange(action.op);
    if (change == 0) continue;
    const auto place = std::find(stages.begin(), stages.end(), action.stage) - stages.begin();
    now.in_flight[static_cast<size_t>(place)] += change;
    if (action.op != schedule::Op::kForward) continue;
    now.acting = static_cast<int>(place);
    const auto covers = [&](const Moment& other) { return is_within(now, other); };
    if (std::any_of(fullest.begin(), fullest.end(), covers)) continue;
    fullest.erase(std::remove_if(fullest.begin(), fullest.end(),
                                 [&](const Moment& other) { return is_within(other, now); }),
                  fullest.end());
    fullest.push_back(now);
  }
  return fullest;
}

int64_t StagePeaks::RankAtLeast(Rank rank, absl::Span<const StageMemory> stages) const {
  const auto index = static_cast<size_t>(rank.value());
  const std::vector<StageId>& own = stages_of_[index];
  int64_t resident_bytes = ReductionAreaBytes(stages, lowered_->training, rank);
  int64_t workspace_bytes = 0;
  for (const StageId stage : own) {
    const StageMemory& memory = stages[static_cast<size_t>(stage.value())];
    resident_bytes += ResidentBytes(memory);
    workspace_bytes = std::max(workspace_bytes, AlignBlock(memory.workspace_bytes));
  }
  int64_t most_bytes = 0;
  for (const Moment& moment : moments_[index]) {
    int64_t live_bytes = 0;
    for (size_t place = 0; place < own.size(); ++place) {
      const StageId stage = own[place];
      // Neighbors on one rank share what passes between them.
      const bool has_input_of_its_own = place == 0 || own[place - 1].value() + 1 != stage.value();
      live_bytes += ForwardBytes(stages[static_cast<size_t>(stage.value())],
                                 moment.in_flight[place], static_cast<int>(place) == moment.acting,
                                 positions_[static_cast<size_t>(stage.value())].is_last,
                                 has_input_of_its_own);
    }
    most_bytes = std::max(most_bytes, live_bytes);
  }
  return resident_bytes + workspace_bytes + most_bytes;
}

StagePeaks::Key StagePeaks::KeyOf(Rank rank, absl::Span<const StageMemory> stages) const {
  Key key;
  key.first = rank.value();
  for (const StageId stage : stages_of_[static_cast<size_t>(rank.value())]) {
    key.second.push_back(stages[static_cast<size_t>(stage.value())]);
  }
  return key;
}

absl::StatusOr<int64_t> StagePeaks::RankPeakBytes(Rank rank, absl::Span<const StageMemory> stages) {
  Key key = KeyOf(rank, stages);
  if (const auto entry = peak_bytes_.find(key); entry != peak_bytes_.end()) return entry->second;
  ASSIGN_OR_RETURN(const RankReport report, ReportRank(lowered_->training, lowered_->evaluation,
                                                       rank, stages, lowered_->collectives));
  peak_bytes_.emplace(std::move(key), report.peak_bytes());
  return report.peak_bytes();
}

absl::StatusOr<int64_t> StagePeaks::PeakBytes(int stage, const StageMemory& memory) {
  std::vector<StageMemory> stages(positions_.size());
  stages[static_cast<size_t>(stage)] = memory;
  return RankPeakBytes(lowered_->training.rank_of(StageId(stage)), stages);
}

int64_t StagePeaks::AtLeast(int stage, const StageMemory& memory) {
  const Rank rank = lowered_->training.rank_of(StageId(stage));
  Key key;
  key.first = rank.value();
  for (const StageId own : stages_of_[static_cast<size_t>(rank.value())]) {
    key.second.push_back(own.value() == stage ? memory : StageMemory());
  }
  if (const auto entry = peak_bytes_.find(key); entry != peak_bytes_.end()) return entry->second;
  const schedule::Schedule& training = lowered_->training;
  return ResidentBytes(memory) + AlignBlock(memory.reduction_bytes) +
         NormTableBytes(lowered_->collectives, training) +
         ResultTableBytes(lowered_->collectives, training, rank) +
         AlignBlock(memory.workspace_bytes) + LiveBytes(stage, memory);
}

int64_t StagePeaks::LiveBytes(int stage, const StageMemory& memory) {
  // Index: BlockKind.
  const BlockCounts bytes = {
      AlignBlock(memory.input_bytes),          AlignBlock(memory.output_bytes),
      AlignBlock(memory.stash_bytes),          AlignBlock(memory.weight_stash_bytes),
      AlignBlock(memory.stash_bytes),          AlignBlock(memory.weight_stash_bytes),
      AlignBlock(memory.gradient_stash_bytes), AlignBlock(memory.output_gradient_bytes),
      AlignBlock(memory.input_gradient_bytes)};
  int64_t most_bytes = 0;
  for (const BlockCounts& counts : LiveCounts(stage, memory)) {
    most_bytes = std::max(
        most_bytes, std::inner_product(counts.begin(), counts.end(), bytes.begin(), int64_t{0}));
  }
  return most_bytes;
}

// Lifetimes do not depend on sizes, so those of blocks of one byte are those of all.
const std::vector<StagePeaks::BlockCounts>& StagePeaks::LiveCounts(int stage,
                                                                   const StageMemory& memory) {
  const auto [entry, is_new] = live_counts_.try_emplace(
      Uses{stage, static_cast<int>(memory.input_last_use), static_cast<int>(memory.output_last_use),
           static_cast<int>(memory.output_gradient_last_use)});
  std::vector<BlockCounts>& fullest = entry->second;
  if (!is_new) return fullest;
  StageMemory unit = {.input_bytes = 1,
                      .output_bytes = 1,
                      .stash_bytes = 1,
                      .weight_stash_bytes = 1,
                      .gradient_stash_bytes = 1,
                      .output_gradient_bytes = 1,
                      .input_gradient_bytes = lowered_->training.is_first(StageId(stage)) ? 0 : 1};
  unit.input_last_use = memory.input_last_use;
  unit.output_last_use = memory.output_last_use;
  unit.output_gradient_last_use = memory.output_gradient_last_use;
  std::vector<StageMemory> stages(positions_.size());
  stages[static_cast<size_t>(stage)] = unit;
  for (const schedule::Schedule* schedule : {&lowered_->training, &lowered_->evaluation}) {
    const absl::StatusOr<schedule::MemoryPlan> plan =
        PlanMemory(*schedule, schedule->rank_of(StageId(stage)), stages);
    if (plan.ok()) AddCounts(StageId(stage), plan->blocks, fullest);
  }
  return fullest;
}

void StagePeaks::AddCounts(StageId stage, const std::vector<schedule::Block>& blocks,
                           std::vector<BlockCounts>& fullest) {
  // What passes between neighbors on one rank is one block of either: of the others, which have no
  // sizes here, those are this stage's input and output gradient.
  const auto kind_of = [stage](const schedule::Block& block) {
    if (block.stage == stage) return block.kind;
    return block.kind == schedule::BlockKind::kOutput ? schedule::BlockKind::kInput
                                                      : schedule::BlockKind::kOutputGradient;
  };
  // More begins only where a block is claimed, so those are the moments to look at.
  std::vector<std::pair<int32_t, int>> ends;  // the last use, and the kind; a heap
  BlockCounts now = {};
  const auto is_within = [](const BlockCounts& a, const BlockCounts& b) {
    return std::equal(a.begin(), a.end(), b.begin(), std::less_equal<>());
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    const schedule::Block& block = blocks[i];
    while (!ends.empty() && ends.front().first < block.first) {
      --now[static_cast<size_t>(ends.front().second)];
      std::pop_heap(ends.begin(), ends.end(), std::greater<>());
      ends.pop_back();
    }
    const auto kind = static_cast<int>(kind_of(block));
    ++now[static_cast<size_t>(kind)];
    ends.emplace_back(block.last, kind);
    std::push_heap(ends.begin(), ends.end(), std::greater<>());
    if (i + 1 < blocks.size() && blocks[i + 1].first == block.first) continue;
    const auto covers = [&](const BlockCounts& other) { return is_within(now, other); };
    if (std::any_of(fullest.begin(), fullest.end(), covers)) continue;
    std::erase_if(fullest, [&](const BlockCounts& other) { return is_within(other, now); });
    fullest.push_back(now);
  }
}

int64_t StagePeaks::Bound(int stage, const StageMemory& memory) const {
  const auto index = static_cast<size_t>(stage);
  return ResidentBytes(memory) + AlignBlock(memory.reduction_bytes) +
         AlignBlock(memory.workspace_bytes) +
         ForwardBytes(memory, in_flight_[index], /*is_acting=*/true, positions_[index].is_last,
                      /*has_input_of_its_own=*/true);
}

}  // namespace stagecoach::partition
