#include "partition/search/best_cut.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/search/cut_search.h"

namespace stagecoach::partition {
namespace {

using Cut = CutEvaluator::Cut;

class Search {
 public:
  Search(CutEvaluator& pipeline, const BestCutOptions& options, SearchBudget& budget)
      : pipeline_(pipeline),
        options_(options),
        budget_(budget),
        cuts_(pipeline, options.may_recompute, budget) {
    most_simulated_ =
        options.most_actions / std::max<int64_t>(pipeline.training().num_actions(), 1) + 1;
  }

  absl::StatusOr<BestCut> Run() {
    if (!options_.only_cut.empty()) {
      RETURN_IF_ERROR(Consider(options_.only_cut));
    } else if (options_.quick != BestCutOptions::Quick::kNo) {
      RETURN_IF_ERROR(ConsiderQuickly());
    } else if (!options_.start.empty()) {
      RETURN_IF_ERROR(Consider(options_.start));
      if (best_.has_value() && options_.may_refine) RETURN_IF_ERROR(Descend());
    } else if (CountCuts(pipeline_.num_layers(), pipeline_.num_stages()) <= kMaxEnumeratedCuts) {
      RETURN_IF_ERROR(EnumerateAll());
    } else {
      RETURN_IF_ERROR(StartFrom(StageMeasure::kBottleneck));
      RETURN_IF_ERROR(Improve());
    }
    if (!best_.has_value()) {
      RETURN_IF_ERROR(budget_.status());
      return absl::ResourceExhaustedError("no cut was found to fit");
    }
    best_->simulated = simulated_;
    return *std::move(best_);
  }

 private:
  absl::StatusOr<double> ObjectiveOf(const Cut& cut) {
    ++simulated_;
    if (options_.objective == PlanObjective::kBottleneck) return pipeline_.BottleneckNs(cut);
    ASSIGN_OR_RETURN(const int64_t step_ns, pipeline_.StepNs(cut));
    return static_cast<double>(step_ns);
  }

  // Considers these stages with as much recomputation as they need.
  absl::Status Consider(std::vector<int> first_layer) {
    Cut cut = {std::move(first_layer), {}};
    // Cheap before dear: recomputation only makes it slower, and what fits is asked last.
    const double least_ns = best_.has_value() ? best_->objective_ns : kNone;
    if (pipeline_.BusiestNs(cut) >= least_ns) return absl::OkStatus();
    ASSIGN_OR_RETURN(double objective_ns, ObjectiveOf(cut));
    if (objective_ns >= least_ns) return absl::OkStatus();
    absl::StatusOr<Cut> fitting = cuts_.WithRecomputation(std::move(cut.first_layer));
    if (absl::IsResourceExhausted(fitting.status())) return absl::OkStatus();
    RETURN_IF_ERROR(fitting.status());
    return Keep(*std::move(fitting), objective_ns);
  }

  // `objective_ns`: without recomputation.
  absl::Status Keep(Cut cut, double objective_ns) {
    if (!cut.recomputed.empty()) {
      ASSIGN_OR_RETURN(objective_ns, ObjectiveOf(cut));
    }
    if (best_.has_value() && objective_ns >= best_->objective_ns) return absl::OkStatus();
    best_ = {.cut = std::move(cut), .objective_ns = objective_ns};
    return absl::OkStatus();
  }

  // All ways to cut, in lexicographic order.
  absl::Status EnumerateAll() {
    // A good one first, so that most of the others are ruled out unseen.
    RETURN_IF_ERROR(StartFrom(StageMeasure::kFillAndDrain));
    // If every rank has one stage, none of the other cuts would be found to fit.
    if (!best_.has_value() && pipeline_.has_one_stage_per_rank()) return absl::OkStatus();
    const int stages = pipeline_.num_stages();
    const int layers = pipeline_.num_layers();
    std::vector<int> first_layer(static_cast<size_t>(stages));
    for (int stage = 0; stage < stages; ++stage) first_layer[static_cast<size_t>(stage)] = stage;
    while (true) {
      if (budget_.IsReached()) return absl::OkStatus();
      RETURN_IF_ERROR(Consider(first_layer));
      int stage = stages - 1;
      while (stage > 0 && first_layer[static_cast<size_t>(stage)] == layers - stages + stage) {
        --stage;
      }
      if (stage <= 0) break;
      ++first_layer[static_cast<size_t>(stage)];
      for (int next = stage + 1; next < stages; ++next) {
        first_layer[static_cast<size_t>(next)] = first_layer[static_cast<size_t>(next) - 1] + 1;
      }
    }
    if (best_.has_value()) {
      best_->is_optimal = cuts_.is_exact();
      best_->is_final = true;
    }
    return absl::OkStatus();
  }

  absl::Status StartFrom(StageMeasure measure) {
    absl::StatusOr<Cut> cut = cuts_.Find(measure);
    if (absl::IsResourceExhausted(cut.status()) || IsCutShort(cut.status())) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(cut.status());
    if (best_.has_value() && *cut == best_->cut) return absl::OkStatus();
    const Cut plain = {cut->first_layer, {}};
    ASSIGN_OR_RETURN(const double objective_ns, ObjectiveOf(plain));
    return Keep(*std::move(cut), objective_ns);
  }

  absl::Status Improve() {
    // Then the start is what was asked for: PartitionChain is exact, but for reductions.
    if (options_.objective == PlanObjective::kBottleneck && pipeline_.has_one_stage_per_rank() &&
        !pipeline_.replication().is_needed()) {
      if (best_.has_value()) {
        best_->is_optimal = best_->cut.recomputed.empty();
        best_->is_final = true;
      }
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(StartFrom(StageMeasure::kFillAndDrain));
    if (best_.has_value()) best_->is_final = simulated_ >= most_simulated_;
    bool has_moved = best_.has_value() && options_.may_refine;
    while (has_moved && !IsOver()) {
      has_moved = false;
      const std::vector<int> from = best_->cut.first_layer;
      RETURN_IF_ERROR(MoveBoundaries(from));
      has_moved = best_->cut.first_layer != from;
    }
    return absl::OkStatus();
  }

  absl::Status ConsiderQuickly() {
    const bool is_one = options_.quick == BestCutOptions::Quick::kOne;
    for (const auto measure : {StageMeasure::kFillAndDrain, StageMeasure::kBottleneck}) {
      for (const bool is_even : {false, true}) {
        absl::StatusOr<std::vector<int>> first_layer = cuts_.Quick(measure, is_even);
        if (absl::IsResourceExhausted(first_layer.status())) continue;
        RETURN_IF_ERROR(first_layer.status());
        RETURN_IF_ERROR(Consider(*std::move(first_layer)));
        if (is_one && best_.has_value()) return absl::OkStatus();
      }
      if (is_one) break;
    }
    return absl::OkStatus();
  }

  // Moves boundaries by ever fewer layers, the first move that helps each time.
  absl::Status Descend() {
    for (int step = options_.longest_step; step >= 1; step /= 2) {
      bool has_moved = true;
      while (has_moved && !IsOver()) {
        const double before_ns = best_->objective_ns;
        for (size_t count = 1; count < best_->cut.first_layer.size(); count += (count + 1) / 2) {
          RETURN_IF_ERROR(MoveRuns(count, step));
        }
        has_moved = best_->objective_ns < before_ns;
      }
    }
    return absl::OkStatus();
  }

  // Moves that many neighboring boundaries at once, wherever they are, as often as that helps.
  absl::Status MoveRuns(size_t count, int step) {
    for (size_t first = 1; first + count <= best_->cut.first_layer.size(); ++first) {
      for (const int change : {-step, step}) {
        bool has_moved = true;
        while (has_moved) {
          if (IsOver()) return absl::OkStatus();
          const double before_ns = best_->objective_ns;
          std::vector<int> moved = best_->cut.first_layer;
          for (size_t i = first; i < first + count; ++i) moved[i] += change;
          const int end =
              first + count < moved.size() ? moved[first + count] : pipeline_.num_layers();
          const bool is_cut = moved[first] > moved[first - 1] && moved[first + count - 1] < end;
          if (is_cut) RETURN_IF_ERROR(Consider(std::move(moved)));
          has_moved = best_->objective_ns < before_ns;
        }
      }
    }
    return absl::OkStatus();
  }

  bool IsOver() { return simulated_ >= most_simulated_ || budget_.IsReached(); }

  // Considers all cuts in which neighboring boundaries, one or more, are moved by one layer.
  absl::Status MoveBoundaries(const std::vector<int>& from) {
    for (size_t first = 1; first < from.size(); ++first) {
      for (const int step : {-1, 1}) {
        std::vector<int> moved = from;
        for (size_t last = first; last < from.size(); ++last) {
          moved[last] += step;
          const int end = last + 1 < from.size() ? from[last + 1] : pipeline_.num_layers();
          const bool is_cut = moved[first] > moved[first - 1] && moved[last] < end;
          if (is_cut) RETURN_IF_ERROR(Consider(moved));
          if (IsOver()) return absl::OkStatus();
        }
      }
    }
    return absl::OkStatus();
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  CutEvaluator& pipeline_;
  const BestCutOptions options_;
  SearchBudget& budget_;
  CutSearch cuts_;
  int64_t most_simulated_ = 0;
  int simulated_ = 0;
  std::optional<BestCut> best_;
};

}  // namespace

int64_t CountCuts(int layers, int stages) {
  int64_t count = 1;  // binomial coefficient of layers - 1 over stages - 1
  const int choose = std::min(stages - 1, layers - stages);
  for (int i = 1; i <= choose; ++i) {
    count = count * (layers - choose + i - 1) / i;
    if (count > kMaxEnumeratedCuts) return kMaxEnumeratedCuts + 1;
  }
  return count;
}

absl::StatusOr<BestCut> FindBestCut(CutEvaluator& pipeline, const BestCutOptions& options,
                                    SearchBudget& budget) {
  return Search(pipeline, options, budget).Run();
}

}  // namespace stagecoach::partition
