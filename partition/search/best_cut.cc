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

using Cut = Pipeline::Cut;

class Search {
 public:
  Search(Pipeline& pipeline, const BestCutOptions& options, Cutoff& cutoff)
      : pipeline_(pipeline),
        options_(options),
        cutoff_(cutoff),
        cuts_(pipeline, options.may_recompute, cutoff) {
    most_simulated_ =
        kMaxSimulatedActions / std::max<int64_t>(pipeline.training().num_actions(), 1) + 1;
  }

  absl::StatusOr<BestCut> Run() {
    if (!options_.only_cut.empty()) {
      RETURN_IF_ERROR(Consider(options_.only_cut));
    } else if (CountCuts(pipeline_.num_layers(), pipeline_.num_stages()) <= kMaxEnumeratedCuts) {
      RETURN_IF_ERROR(EnumerateAll());
    } else {
      RETURN_IF_ERROR(StartFrom(StageMeasure::kBottleneck));
      RETURN_IF_ERROR(Improve());
    }
    if (!best_.has_value()) {
      RETURN_IF_ERROR(cutoff_.status());
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
    // Where every rank has one stage, none of the others would be found to fit.
    if (!best_.has_value() && pipeline_.has_one_stage_per_rank()) return absl::OkStatus();
    const int stages = pipeline_.num_stages();
    const int layers = pipeline_.num_layers();
    std::vector<int> first_layer(static_cast<size_t>(stages));
    for (int stage = 0; stage < stages; ++stage) first_layer[static_cast<size_t>(stage)] = stage;
    while (true) {
      if (cutoff_.IsReached()) return absl::OkStatus();
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
    while (has_moved && simulated_ < most_simulated_ && !cutoff_.IsReached()) {
      has_moved = false;
      const std::vector<int> from = best_->cut.first_layer;
      RETURN_IF_ERROR(MoveBoundaries(from));
      has_moved = best_->cut.first_layer != from;
    }
    return absl::OkStatus();
  }

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
          if (simulated_ >= most_simulated_ || cutoff_.IsReached()) return absl::OkStatus();
        }
      }
    }
    return absl::OkStatus();
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  Pipeline& pipeline_;
  const BestCutOptions options_;
  Cutoff& cutoff_;
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

absl::StatusOr<BestCut> FindBestCut(Pipeline& pipeline, const BestCutOptions& options,
                                    Cutoff& cutoff) {
  return Search(pipeline, options, cutoff).Run();
}

}  // namespace stagecoach::partition
