#include "schedule/transforms/host_copies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace stagecoach::schedule {
namespace {

// One stash, and the operations of its rank that write it and read it first.
struct Stash {
  StageId stage;
  MicroBatch micro_batch;
  int forward = 0;
  int backward = 0;

  int between() const { return backward - forward - 1; }
};

// The operations of a list, without transfers and what concerns whole stages.
struct Operations {
  std::vector<int> of_position;  // index: position; -1: part of none
  int count = 0;
};

Operations OperationsOf(const std::vector<Action>& list) {
  Operations operations;
  bool continues = false;
  for (const Action& action : list) {
    if (!IsCompute(action.op)) {
      operations.of_position.push_back(-1);
      continue;
    }
    if (!continues) ++operations.count;
    operations.of_position.push_back(operations.count - 1);
    continues = action.overlaps_next;
  }
  return operations;
}

// Returns the stashes that are kept long enough, in the order of the list.
std::vector<Stash> LongKept(const std::vector<Action>& list, const Operations& operations) {
  std::map<std::pair<StageId, MicroBatch>, int> forward;
  std::vector<Stash> kept;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const std::pair key(action.stage, action.micro_batch);
    if (action.op == Op::kForward) forward[key] = operations.of_position[i];
    if (action.op != Op::kBackwardInput && action.op != Op::kBackward) continue;
    const Stash stash = {action.stage, action.micro_batch, forward[key], operations.of_position[i]};
    if (stash.between() >= kLeastKept) kept.push_back(stash);
  }
  return kept;
}

// Returns those to move, in the order of their backward passes.
std::vector<Stash> Choose(const std::vector<Stash>& kept, double share) {
  struct OfStage {
    std::vector<Stash> stashes;
    int64_t between = 0;  // sum
  };
  std::map<StageId, OfStage> by_stage;
  for (const Stash& stash : kept) {
    OfStage& of_stage = by_stage[stash.stage];
    of_stage.stashes.push_back(stash);
    of_stage.between += stash.between();
  }
  std::vector<const OfStage*> longest_first;
  for (const auto& [stage, of_stage] : by_stage) longest_first.push_back(&of_stage);
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [](const OfStage* a, const OfStage* b) {
                     const auto mean = [](const OfStage& of_stage) {
                       return static_cast<double>(of_stage.between) /
                              static_cast<double>(of_stage.stashes.size());
                     };
                     return mean(*a) > mean(*b);
                   });
  auto left = static_cast<size_t>(std::llround(share * static_cast<double>(kept.size())));
  std::vector<Stash> chosen;
  for (const OfStage* of_stage : longest_first) {
    const size_t all = of_stage->stashes.size();
    const size_t moved = std::min(left, all);
    for (size_t i = 0; i < all; ++i) {
      const bool is_moved = (i + 1) * moved / all > i * moved / all;
      if (is_moved) chosen.push_back(of_stage->stashes[i]);
    }
    left -= moved;
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const Stash& a, const Stash& b) { return a.backward < b.backward; });
  return chosen;
}

void AddToList(double share, std::vector<Action>& list) {
  const Operations operations = OperationsOf(list);
  const std::vector<Stash> moved = Choose(LongKept(list, operations), share);
  if (moved.empty()) return;
  const auto count = static_cast<size_t>(operations.count);
  // What is done right before and right after each operation. Memory is freed before more is taken.
  std::vector<std::vector<Action>> before(count), after(count);
  for (const Op op : {Op::kRelease, Op::kOffload, Op::kFetch}) {
    for (const Stash& stash : moved) {
      const Action action = {.op = op, .stage = stash.stage, .micro_batch = stash.micro_batch};
      if (op == Op::kFetch) {
        before[static_cast<size_t>(stash.backward - kOperationsPerCopy)].push_back(action);
      } else {
        const int beside = op == Op::kRelease ? kOperationsPerCopy : 0;
        after[static_cast<size_t>(stash.forward + beside)].push_back(action);
      }
    }
  }
  std::vector<Action> with_copies;
  with_copies.reserve(list.size() + 3 * moved.size());
  const auto append = [&](const std::vector<Action>& actions) {
    with_copies.insert(with_copies.end(), actions.begin(), actions.end());
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const int operation = operations.of_position[i];
    const bool starts = operation >= 0 && (i == 0 || operations.of_position[i - 1] != operation);
    const bool ends = operation >= 0 && !list[i].overlaps_next;
    if (starts) append(before[static_cast<size_t>(operation)]);
    with_copies.push_back(list[i]);
    if (ends) append(after[static_cast<size_t>(operation)]);
  }
  list = std::move(with_copies);
}

}  // namespace

void AddHostCopies(double share, Schedule& lowered) {
  if (share == 0.0 || !lowered.HasBackward() || lowered.MovesStashes()) return;
  for (std::vector<Action>& list : lowered.actions) AddToList(share, list);
}

}  // namespace stagecoach::schedule
