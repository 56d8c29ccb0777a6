#include "partition/stage_peaks.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "partition/rank_report.h"

namespace stagecoach::partition {
namespace {

using schedule::AlignBlock;
using schedule::LastUse;
using schedule::Rank;
using schedule::StageId;
using schedule::StageMemory;

// For each stage, the most micro-batches that it has between F and B at once.
std::vector<int> PeakStashes(const schedule::Schedule& training) {
  std::vector<int> stashed(training.num_stages());
  std::vector<int> peaks(training.num_stages());
  for (const std::vector<schedule::Action>& list : training.actions) {
    for (const schedule::Action& action : list) {
      const auto stage = static_cast<size_t>(action.stage.value());
      if (action.op == schedule::Op::kForward) {
        peaks[stage] = std::max(peaks[stage], ++stashed[stage]);
      } else if (action.op == schedule::Op::kBackwardInput ||
                 action.op == schedule::Op::kBackward) {
        --stashed[stage];
      }
    }
  }
  return peaks;
}

// What lives during the forward action that brings the stash to `stashed` micro-batches. Buffers
// that transfers keep longer come on top.
int64_t BytesDuringForward(const StageMemory& memory, int stashed, bool is_last) {
  const auto live = [stashed](int64_t bytes, LastUse last_use) {
    return AlignBlock(bytes) * (last_use == LastUse::kForward ? 1 : stashed);
  };
  int64_t bytes = AlignBlock(memory.parameter_bytes) + AlignBlock(memory.gradient_bytes) +
                  AlignBlock(memory.optimizer_bytes) + AlignBlock(memory.other_resident_bytes) +
                  AlignBlock(memory.workspace_bytes);
  bytes += live(memory.input_bytes, memory.input_last_use);
  bytes += live(memory.output_bytes, memory.output_last_use);
  bytes += live(memory.stash_bytes, LastUse::kBackwardInput);
  bytes += live(memory.weight_stash_bytes, LastUse::kBackwardWeight);
  if (is_last) bytes += live(memory.output_gradient_bytes, LastUse::kBackwardInput);
  return bytes;
}

}  // namespace

StagePeaks::StagePeaks(absl::Span<const LayerCost> layers, const LossMemory& loss,
                       schedule::Schedule training, schedule::Schedule evaluation)
    : layers_(layers),
      loss_(loss),
      training_(std::move(training)),
      evaluation_(std::move(evaluation)),
      peak_stash_(PeakStashes(training_)) {
  for (StageId stage(0); stage.value() < training_.num_stages(); ++stage) {
    positions_.push_back(PositionOf(training_, stage));
  }
}

const StageMemory& StagePeaks::Memory(const StageRange& range) {
  auto [entry, is_new] = memory_.try_emplace(range);
  if (is_new) {
    entry->second = AggregateStage(layers_.subspan(range.first, range.last - range.first + 1),
                                   loss_, positions_[range.stage]);
  }
  return entry->second;
}

absl::StatusOr<int64_t> StagePeaks::PeakBytes(const StageRange& range) {
  if (auto entry = peak_bytes_.find(range); entry != peak_bytes_.end()) return entry->second;
  std::vector<StageMemory> stages(positions_.size());
  stages[range.stage] = Memory(range);
  ASSIGN_OR_RETURN(
      const RankReport report,
      ReportRank(training_, evaluation_, training_.rank_of(StageId(range.stage)), stages));
  peak_bytes_.emplace(range, report.peak_bytes());
  return report.peak_bytes();
}

int64_t StagePeaks::AtLeast(const StageRange& range) {
  if (auto entry = peak_bytes_.find(range); entry != peak_bytes_.end()) return entry->second;
  return BytesDuringForward(Memory(range), peak_stash_[range.stage],
                            positions_[range.stage].is_last);
}

absl::StatusOr<int64_t> StagePeaks::LargestPeakBytes(absl::Span<const StageRange> ranges) {
  std::vector<StageMemory> stages;
  for (const StageRange& range : ranges) stages.push_back(Memory(range));
  int64_t largest_bytes = 0;
  for (Rank rank(0); rank.value() < training_.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(const RankReport report, ReportRank(training_, evaluation_, rank, stages));
    largest_bytes = std::max(largest_bytes, report.peak_bytes());
  }
  return largest_bytes;
}

}  // namespace stagecoach::partition
