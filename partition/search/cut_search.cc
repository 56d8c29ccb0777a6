#include "partition/search/cut_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "base/status_macros.h"
#include "partition/bounds/layer_bounds.h"

namespace stagecoach::partition {
namespace {

using Cut = CutEvaluator::Cut;
using schedule::StageMemory;

// The limits that a repair tries between one that is too loose and one that fits.
constexpr int kRepairSteps = 6;
constexpr int64_t kRepairPrecision = 128;
// Cuts that are tried in turn where one is to be found soon.
constexpr int kQuickCuts = 14;
constexpr double kTighter = 0.99;  // than what was too full seems to need
constexpr double kNever = std::numeric_limits<double>::infinity();

// A lower bound of what the layer adds to any stage, for each micro-batch in flight. `given_bytes`:
// the output of the layer before, without what passes that layer: a stage keeps it once, not once
// for each layer that it passes.
int64_t LeastStashBytes(const LayerCost& layer, int64_t given_bytes, bool may_recompute) {
  const LayerMemory& memory = layer.memory;
  const bool keeps_input = memory.input_last_use != schedule::LastUse::kForward;
  return LeastOwnStashBytes(layer, may_recompute) +
         (keeps_input ? std::min(memory.input_bytes, given_bytes) : 0);
}

bool CanRecompute(absl::Span<const LayerCost> layers) {
  return std::any_of(layers.begin(), layers.end(), [](const LayerCost& layer) {
    return layer.recompute_stash_bytes.has_value();
  });
}

}  // namespace

CutSearch::CutSearch(CutEvaluator& pipeline, bool may_recompute, SearchBudget& budget)
    : pipeline_(pipeline),
      may_recompute_(may_recompute && CanRecompute(pipeline.layers().layers)),
      budget_(budget) {
  int64_t largest_bytes = 0;
  for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
    if (IsLimited(rank)) {
      largest_bytes = std::max(largest_bytes, pipeline_.devices_of(rank).memory_bytes);
    }
  }
  if (largest_bytes > 0) largest_memory_bytes_ = largest_bytes;
}

ChainProblem CutSearch::ProblemFor(StageMeasure measure) const {
  const LayerTable& table = pipeline_.layers();
  const int micro_batches = pipeline_.micro_batches();
  // At the end of a step a rank waits for its gradients; of steps that overlap it need not.
  const bool waits_for_reductions =
      measure == StageMeasure::kFillAndDrain || !pipeline_.overlaps_messages();
  ChainProblem problem;
  problem.stages = pipeline_.num_stages();
  problem.micro_batches = micro_batches;
  problem.overlaps_messages = pipeline_.overlaps_messages();
  bool has_messages = false;
  int64_t before_bytes = 0;
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const LayerCost& layer = table.layers[i];
    problem.layer_ns.push_back(layer.batch_ns(micro_batches));
    if (waits_for_reductions) {
      problem.layer_ns.back() += pipeline_.ReductionNsOf(layer.memory.parameter_bytes);
    }
    problem.boundary_bytes.push_back(before_bytes);
    before_bytes = layer.memory.output_bytes + layer.memory.passing_bytes;
    if (measure == StageMeasure::kFillAndDrain) {
      problem.start_ns.push_back(table.forward_ns[i] + table.backward_input_ns[i] +
                                 table.backward_weight_ns[i] - table.shared_backward_ns[i] +
                                 table.step_ns[i]);
    }
  }
  for (int stage = 0; stage < problem.stages; ++stage) {
    problem.speeds.push_back(pipeline_.devices_of_stage(stage).speed);
    if (stage + 1 == problem.stages) continue;
    problem.links.push_back(pipeline_.LinkBetween(stage, stage + 1));
    has_messages = has_messages || problem.links.back() != schedule::Link();
  }
  if (!has_messages) {
    problem.links.clear();
    problem.boundary_bytes.clear();
  }
  for (int stage = 0; stage < problem.stages; ++stage) {
    problem.in_flight.push_back(pipeline_.peaks().in_flight(stage));
  }
  return problem;
}

void CutSearch::FillMemory(const std::vector<int64_t>& limits) {
  const bool trains = pipeline_.training().HasBackward();
  int64_t given_bytes = 0;
  for (const LayerCost& layer : pipeline_.layers().layers) {
    problem_.layer_bytes.push_back(trains ? TrainedBytes(layer, pipeline_.replication())
                                          : layer.memory.parameter_bytes +
                                                layer.memory.other_resident_bytes);
    problem_.layer_stash_bytes.push_back(LeastStashBytes(layer, given_bytes, may_recompute_));
    given_bytes = layer.memory.output_bytes;
  }
  for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
    problem_.budget_bytes.push_back(limits[static_cast<size_t>(pipeline_.rank_of(stage))]);
  }
}

std::vector<int64_t> CutSearch::LimitsFor(int64_t bytes) const {
  std::vector<int64_t> limits;
  for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
    const int64_t own_bytes = pipeline_.devices_of(rank).memory_bytes;
    if (!IsLimited(rank) || bytes == kUnlimitedBytes) {
      limits.push_back(kUnlimitedBytes);
    } else {
      const auto share = absl::int128(own_bytes) * bytes / largest_memory_bytes_;
      limits.push_back(static_cast<int64_t>(share));
    }
  }
  return limits;
}

StageMemory CutSearch::PlainMemory(const StageRange& range) {
  const StagePosition& position = pipeline_.peaks().position(range.stage);
  // Last stages that begin with the same layer end with the same layer.
  if (position.is_last) return pipeline_.Memory(range.first, range.last, range.stage, {});
  std::vector<StageMemory>& known =
      plain_memory_[{range.first, position.is_first, position.splits_backward}];
  const auto place = static_cast<size_t>(range.last - range.first);
  if (place >= known.size()) {
    const LayerTable& table = pipeline_.layers();
    const auto layers = absl::MakeConstSpan(table.memory).subspan(static_cast<size_t>(range.first));
    known = LayOutStagesFrom(layers.first(std::min(layers.size(), 2 * (place + 1))), table.ends,
                             position);
  }
  return known[place];
}

const FitOfRange& CutSearch::FitOf(const std::vector<int64_t>& limits, int first, int last,
                                   int stage) {
  const StageRange range = {first, last, stage};
  if (const auto known = fits_.find(range); known != fits_.end()) return known->second;
  // From then on nothing new fits, while PartitionChain still gets the same answers as before.
  static const FitOfRange misfit;
  if (budget_.IsReached()) return misfit;
  FitOfRange& fit = fits_[range];
  const int64_t limit_bytes = limits[static_cast<size_t>(pipeline_.rank_of(stage))];
  const auto fits = [&](absl::Span<const int> recomputed) {
    const StageMemory memory =
        recomputed.empty() ? PlainMemory(range) : pipeline_.Memory(first, last, stage, recomputed);
    return pipeline_.peaks().AtLeast(stage, memory) <= limit_bytes;
  };
  if (may_recompute_) {
    fit = LeastRecomputation(pipeline_.layers().layers, {range},
                             LeastSavedBytes(range, limit_bytes), fits);
  } else {
    fit.fits = fits({});
  }
  is_exact_ = is_exact_ && fit.is_exact;
  return fit;
}

int64_t CutSearch::LeastSavedBytes(const StageRange& range, int64_t limit_bytes) {
  const StagePeaks& peaks = pipeline_.peaks();
  const int64_t in_flight = peaks.in_flight(range.stage);
  const StageMemory memory = PlainMemory(range);
  const int64_t excess_bytes = peaks.Bound(range.stage, memory) - limit_bytes;
  if (excess_bytes <= 0) return 0;
  // Two areas are rounded up.
  return (excess_bytes + in_flight - 1) / in_flight - 2 * schedule::kBlockAlignment;
}

absl::StatusOr<Cut> CutSearch::FastestWithin(const std::vector<int64_t>& limits) {
  const bool is_unlimited = std::all_of(limits.begin(), limits.end(),
                                        [](int64_t bytes) { return bytes == kUnlimitedBytes; });
  problem_.budget_bytes.clear();
  problem_.extra_ns = nullptr;
  problem_.layer_bytes.clear();
  problem_.layer_stash_bytes.clear();
  if (!is_unlimited) {
    FillMemory(limits);
    problem_.extra_ns = [this, &limits](int first, int last, int stage) {
      const FitOfRange& fit = FitOf(limits, first, last, stage);
      const double again_ns = fit.again_ns * pipeline_.micro_batches();
      return fit.fits ? again_ns / pipeline_.devices_of_stage(stage).speed : kNever;
    };
  }
  // Bounds admit every cut that fits and perhaps some that do not. Each of those leaves an exact
  // peak behind that rules it out next time, so the first cut that passes is the best that fits.
  fits_.clear();
  while (true) {
    absl::StatusOr<ChainCut> chain_cut = PartitionChain(problem_);
    // Ranges were refused because of it.
    if (!is_unlimited && budget_.WasReached()) return budget_.status();
    ASSIGN_OR_RETURN(ChainCut found, std::move(chain_cut));
    Cut cut = {.first_layer = std::move(found.first_layer), .recomputed = {}};
    if (is_unlimited) return cut;
    bool fits = true;
    for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
      const int first = cut.first_layer[static_cast<size_t>(stage)];
      const int last = pipeline_.Last(cut, stage);
      const std::vector<int>& again = FitOf(limits, first, last, stage).recomputed;
      ASSIGN_OR_RETURN(
          const int64_t peak_bytes,
          pipeline_.peaks().PeakBytes(stage, pipeline_.Memory(first, last, stage, again)));
      cut.recomputed.insert(cut.recomputed.end(), again.begin(), again.end());
      if (peak_bytes <= limits[static_cast<size_t>(pipeline_.rank_of(stage))]) continue;
      fits = false;
      fits_.erase({first, last, stage});  // to be asked again, its peak being known
    }
    if (fits) return cut;
  }
}

absl::StatusOr<int64_t> CutSearch::LargestPeakAlone(const Cut& cut) {
  int64_t largest_bytes = 0;
  const std::vector<StageMemory> memory = pipeline_.Memories(cut);
  for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
    if (!IsLimited(pipeline_.rank_of(stage))) continue;
    ASSIGN_OR_RETURN(const int64_t peak_bytes,
                     pipeline_.peaks().PeakBytes(stage, memory[static_cast<size_t>(stage)]));
    const int64_t own_bytes = pipeline_.devices_of_stage(stage).memory_bytes;
    // Rounded up: LimitsFor of it admits the peak.
    const auto scaled =
        (absl::int128(peak_bytes) * largest_memory_bytes_ + own_bytes - 1) / own_bytes;
    const auto most = absl::int128(std::numeric_limits<int64_t>::max());
    largest_bytes = std::max(largest_bytes, static_cast<int64_t>(std::min(scaled, most)));
  }
  return largest_bytes;
}

absl::StatusOr<Cut> CutSearch::Find(StageMeasure measure) {
  problem_ = ProblemFor(measure);
  ASSIGN_OR_RETURN(Cut cut, FastestWithin(LimitsFor(largest_memory_bytes_)));
  if (pipeline_.has_one_stage_per_rank()) return cut;
  ASSIGN_OR_RETURN(const int64_t excess_bytes, pipeline_.ExcessBytes(cut));
  return excess_bytes <= 0 ? cut : Repair();
}

absl::StatusOr<std::vector<int64_t>> CutSearch::LeastExcess(const std::vector<int>& first_layer) {
  Cut cut = {.first_layer = first_layer, .recomputed = {}};
  for (int layer = 0; may_recompute_ && layer < pipeline_.num_layers(); ++layer) {
    const LayerCost& own = pipeline_.layers().layers[static_cast<size_t>(layer)];
    if (own.recompute_stash_bytes.has_value()) cut.recomputed.push_back(layer);
  }
  const std::vector<StageMemory> memory = pipeline_.Memories(cut);
  // Packing takes long, and only adds to it.
  std::vector<int64_t> excess_bytes = ExcessAtLeast(memory);
  if (*std::max_element(excess_bytes.begin(), excess_bytes.end()) > 0) return excess_bytes;
  for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
    if (!IsLimited(rank)) continue;
    ASSIGN_OR_RETURN(const int64_t peak_bytes,
                     pipeline_.peaks().RankPeakBytes(schedule::Rank(rank), memory));
    excess_bytes[static_cast<size_t>(rank)] = peak_bytes - pipeline_.devices_of(rank).memory_bytes;
  }
  return excess_bytes;
}

std::vector<int64_t> CutSearch::ExcessAtLeast(absl::Span<const StageMemory> memory) const {
  std::vector<int64_t> excess_bytes(static_cast<size_t>(pipeline_.num_ranks()));
  for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
    if (!IsLimited(rank)) continue;
    excess_bytes[static_cast<size_t>(rank)] =
        pipeline_.peaks().RankAtLeast(schedule::Rank(rank), memory) -
        pipeline_.devices_of(rank).memory_bytes;
  }
  return excess_bytes;
}

absl::StatusOr<std::vector<int>> CutSearch::Quick(StageMeasure measure, bool is_even) {
  const ChainProblem unlimited = ProblemFor(measure);
  std::vector<int64_t> limits = LimitsFor(largest_memory_bytes_);
  for (int attempt = 0; attempt < kQuickCuts && !budget_.IsReached(); ++attempt) {
    problem_ = unlimited;
    FillMemory(limits);
    ASSIGN_OR_RETURN(ChainCut found, PartitionChain(problem_));
    ASSIGN_OR_RETURN(const std::vector<int64_t> excess_bytes, LeastExcess(found.first_layer));
    if (*std::max_element(excess_bytes.begin(), excess_bytes.end()) <= 0) {
      return std::move(found.first_layer);
    }
    std::vector<double> shares;
    for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
      const auto own_bytes = static_cast<double>(pipeline_.devices_of(rank).memory_bytes);
      const auto more_bytes = static_cast<double>(excess_bytes[static_cast<size_t>(rank)]);
      shares.push_back(more_bytes > 0 ? kTighter * own_bytes / (own_bytes + more_bytes) : 1.0);
    }
    const double least = *std::min_element(shares.begin(), shares.end());
    for (size_t rank = 0; rank < limits.size(); ++rank) {
      if (limits[rank] == kUnlimitedBytes) continue;
      const double share = is_even ? least : shares[rank];
      limits[rank] = static_cast<int64_t>(share * static_cast<double>(limits[rank]));
    }
  }
  return absl::ResourceExhaustedError("no cut was soon found to fit");
}

absl::StatusOr<Cut> CutSearch::Roomiest(int64_t precision) {
  problem_ = ProblemFor(StageMeasure::kBottleneck);
  ASSIGN_OR_RETURN(Cut cut, FastestWithin(LimitsFor(kUnlimitedBytes)));
  ASSIGN_OR_RETURN(int64_t enough_bytes, LargestPeakAlone(cut));
  int64_t too_small_bytes = -1;
  while (enough_bytes - too_small_bytes > 1 + enough_bytes / precision) {
    const int64_t limit_bytes = too_small_bytes + (enough_bytes - too_small_bytes) / 2;
    absl::StatusOr<Cut> smaller = FastestWithin(LimitsFor(limit_bytes));
    if (absl::IsResourceExhausted(smaller.status())) {
      too_small_bytes = limit_bytes;
      continue;
    }
    if (IsCutShort(smaller.status())) break;
    RETURN_IF_ERROR(smaller.status());
    cut = *std::move(smaller);
    ASSIGN_OR_RETURN(const int64_t peak_bytes, LargestPeakAlone(cut));
    enough_bytes = std::min(limit_bytes, peak_bytes);
  }
  return cut;
}

// For ranks with several stages, which are within the memory alone but not together: the tighter
// the limit of each, the more even is what ranks take, and the slower the cut. Finds about the
// loosest limit at which the ranks fit.
absl::StatusOr<Cut> CutSearch::Repair() {
  const ChainProblem objective = problem_;
  ASSIGN_OR_RETURN(Cut fitting, Roomiest(kRepairPrecision));
  problem_ = objective;
  ASSIGN_OR_RETURN(const int64_t least_excess_bytes, pipeline_.ExcessBytes(fitting));
  if (least_excess_bytes > 0) {
    RETURN_IF_ERROR(budget_.status());
    return absl::ResourceExhaustedError("no cut was found to fit");
  }
  ASSIGN_OR_RETURN(int64_t tight_bytes, LargestPeakAlone(fitting));
  int64_t loose_bytes = largest_memory_bytes_;
  for (int step = 0; step < kRepairSteps; ++step) {
    const int64_t limit_bytes = tight_bytes + (loose_bytes - tight_bytes) / 2;
    absl::StatusOr<Cut> cut = FastestWithin(LimitsFor(limit_bytes));
    if (IsCutShort(cut.status())) break;
    RETURN_IF_ERROR(cut.status());
    ASSIGN_OR_RETURN(const int64_t excess_bytes, pipeline_.ExcessBytes(*cut));
    if (excess_bytes > 0) {
      loose_bytes = limit_bytes;
    } else {
      tight_bytes = limit_bytes;
      fitting = *std::move(cut);
    }
  }
  return fitting;
}

absl::StatusOr<Cut> CutSearch::WithRecomputation(std::vector<int> first_layer) {
  Cut cut = {.first_layer = std::move(first_layer), .recomputed = {}};
  if (largest_memory_bytes_ == kUnlimitedBytes) return cut;
  const auto exhausted = absl::ResourceExhaustedError("the cut does not fit");
  if (!may_recompute_) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> excess_bytes, LeastExcess(cut.first_layer));
    if (*std::max_element(excess_bytes.begin(), excess_bytes.end()) > 0) return exhausted;
    return cut;
  }
  ASSIGN_OR_RETURN(const int64_t excess_bytes, pipeline_.ExcessBytes(cut));
  if (excess_bytes <= 0) return cut;
  absl::Status status;
  for (int rank = 0; rank < pipeline_.num_ranks(); ++rank) {
    const int64_t limit_bytes = pipeline_.devices_of(rank).memory_bytes;
    std::vector<StageRange> ranges;
    for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
      if (pipeline_.rank_of(stage) != rank) continue;
      ranges.push_back(
          {cut.first_layer[static_cast<size_t>(stage)], pipeline_.Last(cut, stage), stage});
    }
    const auto fits = [&](absl::Span<const int> chosen) {
      std::vector<StageMemory> memory(static_cast<size_t>(pipeline_.num_stages()));
      for (const StageRange& range : ranges) {
        memory[static_cast<size_t>(range.stage)] =
            pipeline_.Memory(range.first, range.last, range.stage, chosen);
      }
      if (pipeline_.peaks().RankAtLeast(schedule::Rank(rank), memory) > limit_bytes) {
        return false;
      }
      const absl::StatusOr<int64_t> peak_bytes =
          pipeline_.peaks().RankPeakBytes(schedule::Rank(rank), memory);
      status.Update(peak_bytes.status());
      return peak_bytes.ok() && *peak_bytes <= limit_bytes;
    };
    const int64_t least_saved_bytes =
        ranges.size() == 1 ? LeastSavedBytes(ranges.front(), limit_bytes) : 0;
    const FitOfRange fit =
        LeastRecomputation(pipeline_.layers().layers, ranges, least_saved_bytes, fits);
    RETURN_IF_ERROR(status);
    is_exact_ = is_exact_ && fit.is_exact;
    if (!fit.fits) return exhausted;
    cut.recomputed.insert(cut.recomputed.end(), fit.recomputed.begin(), fit.recomputed.end());
  }
  std::sort(cut.recomputed.begin(), cut.recomputed.end());
  return cut;
}

}  // namespace stagecoach::partition
