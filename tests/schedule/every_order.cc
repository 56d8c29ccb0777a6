#include "tests/schedule/every_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"

namespace stagecoach::schedule {
namespace {

using List = std::vector<Action>;

size_t Index(int i) { return static_cast<size_t>(i); }

// All lists of one rank that keep the order of micro-batches and the limit.
class Lists {
 public:
  Lists(const AutomaticRequest& request, std::vector<StageId> stages, size_t rank)
      : request_(request),
        stages_(std::move(stages)),
        limit_(request.stash_limit.empty() ? 1e30 : request.stash_limit[rank] * (1 + 1e-9)),
        done_(stages_.size()) {
    Extend();
  }
  std::vector<List> Take() { return std::move(lists_); }

 private:
  struct Done {
    int forward = 0, backward = 0, weight = 0;
  };

  double Kept() const {
    if (request_.stash.empty()) return 0.0;
    double kept = 0.0;
    for (size_t i = 0; i < stages_.size(); ++i) {
      const StageStash& stash = request_.stash[Index(stages_[i].value())];
      kept += (done_[i].forward - done_[i].backward) * stash.forward +
              (done_[i].backward - done_[i].weight) * stash.weight;
    }
    return kept;
  }

  // Without this, B and then W is at least as good as BW.
  bool GainsByFusing(StageId stage) const {
    const StageTimes& times = request_.costs.of(stage);
    if (times.backward_ns < times.backward_input_ns + times.backward_weight_ns) return true;
    if (request_.stash.empty()) return false;
    const StageStash& stash = request_.stash[Index(stage.value())];
    return stash.weight > stash.forward;
  }

  void Extend() {
    if (Kept() > limit_) return;
    bool complete = true;
    for (size_t i = 0; i < stages_.size(); ++i) {
      const Done before = done_[i];
      complete = complete && before.weight == request_.micro_batches;
      if (before.forward < request_.micro_batches) {
        Try(i, Op::kForward, {before.forward + 1, before.backward, before.weight});
      }
      if (before.backward < before.forward) {
        Try(i, Op::kBackwardInput, {before.forward, before.backward + 1, before.weight});
        if (before.weight == before.backward && GainsByFusing(stages_[i])) {
          Try(i, Op::kBackward, {before.forward, before.backward + 1, before.weight + 1});
        }
      }
      if (before.weight < before.backward) {
        Try(i, Op::kBackwardWeight, {before.forward, before.backward, before.weight + 1});
      }
    }
    if (complete) lists_.push_back(list_);
  }

  void Try(size_t i, Op op, const Done& after) {
    const Done before = done_[i];
    const int micro_batch = op == Op::kForward          ? before.forward
                            : op == Op::kBackwardWeight ? before.weight
                                                        : before.backward;
    done_[i] = after;
    list_.push_back({.op = op, .stage = stages_[i], .micro_batch = MicroBatch(micro_batch)});
    Extend();
    list_.pop_back();
    done_[i] = before;
  }

  const AutomaticRequest& request_;
  const std::vector<StageId> stages_;
  const double limit_;
  std::vector<Done> done_;
  List list_;
  std::vector<List> lists_;
};

class Orders {
 public:
  explicit Orders(const AutomaticRequest& request) : request_(request) {
    schedule_.num_micro_batches = request.micro_batches;
    schedule_.rank_of_stage = PlaceStages(request.placement, request.ranks, request.chunks);
    schedule_.actions.resize(Index(request.ranks));
    for (int r = 0; r < request.ranks; ++r) {
      lists_.push_back(Lists(request, schedule_.StagesOf(Rank(r)), Index(r)).Take());
    }
    end_[0].resize(schedule_.rank_of_stage.size() * Index(request.micro_batches));
    end_[1].resize(end_[0].size());
    chosen_.resize(lists_.size());
  }

  int64_t Best() {
    Choose(0, [this] {
      const int64_t objective = Time();
      if (objective != kNotYet && (best_ == kNotYet || objective < best_) && IsValid()) {
        best_ = objective;
      }
    });
    return best_;
  }

  void ForEach(const std::function<void(const Schedule&)>& body) {
    Choose(0, [this, &body] {
      if (Time() != kNotYet) body(Chosen());
    });
  }

 private:
  static constexpr int64_t kNotYet = -1;

  template <typename Body>
  void Choose(size_t rank, const Body& body) {
    if (rank == lists_.size()) return body();
    for (const List& list : lists_[rank]) {
      chosen_[rank] = &list;
      Choose(rank + 1, body);
    }
  }

  const Schedule& Chosen() {
    for (size_t r = 0; r < chosen_.size(); ++r) schedule_.actions[r] = *chosen_[r];
    return schedule_;
  }

  bool IsValid() { return Validate(Lower(Chosen()).value()).ok(); }

  // Repeats until nothing changes: slow, and as different from the library's method as possible.
  int64_t Time() {
    for (std::vector<int64_t>& ends : end_) std::fill(ends.begin(), ends.end(), kNotYet);
    std::array<size_t, 4> next{};
    std::array<int64_t, 4> clock{};
    std::array<int64_t, 4> first{};
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t r = 0; r < chosen_.size(); ++r) {
        while (next[r] < chosen_[r]->size()) {
          const Action& action = (*chosen_[r])[next[r]];
          const int64_t ready = Ready(action);
          if (ready == kNotYet) break;
          const int64_t start = std::max(clock[r], ready);
          if (next[r] == 0) first[r] = start;
          clock[r] = start + Duration(action);
          if (action.op != Op::kBackwardWeight) {
            end_[action.op == Op::kForward ? 0 : 1][Place(action.stage.value(), action)] = clock[r];
          }
          ++next[r];
          moved = true;
        }
      }
    }
    int64_t objective = 0;
    for (size_t r = 0; r < chosen_.size(); ++r) {
      if (next[r] < chosen_[r]->size()) return kNotYet;
      int64_t end = clock[r];
      for (const StageId stage : schedule_.StagesOf(Rank(static_cast<int32_t>(r)))) {
        if (!request_.costs.updates_in_backward) end += request_.costs.of(stage).step_ns;
      }
      objective =
          std::max(objective, request_.objective == OrderObjective::kSpan ? end - first[r] : end);
    }
    return objective;
  }

  size_t Place(int stage, const Action& action) const {
    return Index(stage * request_.micro_batches + action.micro_batch.value());
  }

  int64_t Ready(const Action& action) const {
    const int s = action.stage.value();
    const bool forward = action.op == Op::kForward;
    if (action.op == Op::kBackwardWeight) return 0;
    const int from = forward ? s - 1 : s + 1;
    if (from < 0 || from == schedule_.num_stages()) return 0;
    const int64_t end = end_[forward ? 0 : 1][Place(from, action)];
    const Rank a = schedule_.rank_of(StageId(from));
    const Rank b = schedule_.rank_of(action.stage);
    if (end == kNotYet || a == b) return end;
    const StageTimes& times = request_.costs.of(StageId(from));
    const int64_t bytes = forward ? times.output_bytes : times.input_gradient_bytes;
    return end + request_.costs.LinkBetween(a, b, request_.ranks).TransferNs(bytes);
  }

  int64_t Duration(const Action& action) const {
    const StageTimes& times = request_.costs.of(action.stage);
    const bool is_last = action.micro_batch.value() == request_.micro_batches - 1;
    const int64_t update_ns = is_last && request_.costs.updates_in_backward ? times.step_ns : 0;
    switch (action.op) {
      case Op::kForward:
        return times.forward_ns;
      case Op::kBackwardInput:
        return times.backward_input_ns;
      case Op::kBackwardWeight:
        return times.backward_weight_ns + update_ns;
      default:
        return times.backward_ns + update_ns;
    }
  }

  const AutomaticRequest& request_;
  Schedule schedule_;
  std::vector<std::vector<List>> lists_;  // index: rank
  std::vector<const List*> chosen_;
  std::array<std::vector<int64_t>, 2> end_;  // of F, of B; index: Place
  int64_t best_ = kNotYet;
};

}  // namespace

int64_t BestOfEveryOrder(const AutomaticRequest& request) { return Orders(request).Best(); }

void ForEveryOrder(const AutomaticRequest& request,
                   const std::function<void(const Schedule&)>& body) {
  Orders(request).ForEach(body);
}

}  // namespace stagecoach::schedule
