#include "partition/exact/chain.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/exact/chain_reach.h"
#include "partition/exact/chain_terms.h"

namespace stagecoach::partition {
namespace {

constexpr absl::uint128 kNoSquares = absl::Uint128Max();

struct RangeTimes {
  int64_t compute = 0;
  int64_t receive = 0;
  int64_t send = 0;
};

// Returns the time of a range, or anything from `enough` on if it is no less.
int64_t RangeUnits(const ChainTerms& terms, int begin, int end, int stage, const RangeTimes& times,
                   int64_t enough) {
  const int64_t compute = times.compute + terms.StartUnits(begin);
  const int64_t units = terms.StageUnits(compute, times.receive, times.send);
  if (!terms.has_extra() || units >= enough) return units;
  const int64_t extra = terms.ExtraUnits(begin, end - 1, stage);
  if (extra == ChainTerms::kNever) return ChainTerms::kNever;
  return terms.StageUnits(compute + extra, times.receive, times.send);
}

// Bisects the bottleneck.
class ChainSearch {
 public:
  // The terms must outlive the search.
  explicit ChainSearch(const ChainTerms& terms) : terms_(terms), reach_(terms) {}

  // Returns false if no cut is within terms.max_units(); needed() then tells whether any could be.
  // Limits below `at_least` are not tried.
  bool Run(int64_t at_least = 0) {
    int64_t low = std::max(terms_.LowerBound(), at_least);
    if (!FindFirst(low)) return false;
    while (low < bottleneck_) {
      // A limit just below the answer is refused at once; one far above it has many cuts.
      const int64_t middle = low + (bottleneck_ - low) / 2;
      const int64_t limit = low > 0 ? std::min(middle, 2 * low) : middle;
      if (reach_.Probe(limit)) {
        TakeCut(limit);
      } else {
        low = reach_.needed();
      }
    }
    return true;
  }

  int64_t needed() const { return reach_.needed(); }
  int64_t bottleneck() const { return bottleneck_; }
  const std::vector<int>& first_layer() const { return first_layer_; }
  const ChainReach& ReachWithinBottleneck() {
    reach_.Probe(bottleneck_);
    return reach_;
  }

 private:
  bool FindFirst(int64_t& low);
  void TakeCut(int64_t limit);
  int64_t ChooseBegin(int end, int stage, int64_t limit, int& begin) const;

  const ChainTerms& terms_;
  ChainReach reach_;
  std::vector<int> first_layer_;  // of the best cut found
  int64_t bottleneck_ = ChainTerms::kNever;
};

// Probes at growing limits, since narrow bands make small limits quick; `low` becomes a lower
// bound.
bool ChainSearch::FindFirst(int64_t& low) {
  constexpr int kSteps = 8;
  int64_t limit = low;
  int64_t gap = low / 64;
  for (int step = 0; !reach_.Probe(limit); ++step, gap *= 2) {
    if (reach_.needed() > terms_.max_units()) return false;
    low = reach_.needed();
    limit = step < kSteps ? std::min(low + gap, terms_.max_units()) : terms_.max_units();
  }
  TakeCut(limit);
  return true;
}

// Sets the best cut to one that the last probe found: from the back, chooses the range for which
// the slower of it and the mean of what remains before it is fastest.
void ChainSearch::TakeCut(int64_t limit) {
  first_layer_.assign(static_cast<size_t>(terms_.stages()), 0);
  bottleneck_ = 0;
  int end = terms_.layers();
  for (int stage = terms_.stages() - 1; stage >= 0; --stage) {
    int& begin = first_layer_[stage];
    bottleneck_ = std::max(bottleneck_, ChooseBegin(end, stage, limit, begin));
    end = begin;
  }
  reach_.Prune(bottleneck_);
}

int64_t ChainSearch::ChooseBegin(int end, int stage, int64_t limit, int& begin) const {
  const ChainReach::Band& band = reach_.band(stage);
  const int64_t send = terms_.SendUnits(end, stage);
  double least = std::numeric_limits<double>::infinity();
  int64_t chosen = ChainTerms::kNever;
  int64_t compute = 0;
  for (int candidate = end - 1; candidate >= band.low; --candidate) {
    compute += terms_.LayerUnits(candidate, stage);
    if (compute > limit || static_cast<double>(compute) >= least) break;
    if (!terms_.Fits(candidate, end, stage)) break;
    if (candidate > band.high || !reach_.IsReached(candidate, stage)) continue;
    const double rest = terms_.MeanUnitsBefore(candidate, stage);
    if (rest >= least) continue;
    const int64_t units = RangeUnits(
        terms_, candidate, end, stage,
        {.compute = compute, .receive = terms_.ReceiveUnits(candidate, stage), .send = send},
        limit + 1);
    if (units > limit || static_cast<double>(units) >= least) continue;
    least = std::max(rest, static_cast<double>(units));
    chosen = units;
    begin = candidate;
  }
  return chosen;
}

// Finds the most even among all cuts within a bottleneck: from the back, so that the earliest
// choice can be the smallest among equals.
class EvenCut {
 public:
  // Both must outlive this.
  EvenCut(const ChainTerms& terms, const ChainReach& reach, int64_t bottleneck)
      : terms_(terms),
        reach_(reach),
        bottleneck_(bottleneck),
        elapsed_(terms),
        receive_(static_cast<size_t>(terms.layers()) + 1, 0),
        send_(receive_.size(), 0),
        squares_(receive_.size(), kNoSquares),
        next_squares_(receive_.size(), kNoSquares),
        next_begin_(reach.num_states(), 0) {
    next_squares_[terms.layers()] = 0;
  }

  // Returns nothing if that would take more than kMaxEvened steps.
  std::optional<std::vector<int>> Find() {
    for (int stage = terms_.stages() - 1; stage >= 0; --stage) {
      const ChainReach::Band& band = reach_.band(stage);
      elapsed_.Start(band.low, stage);
      for (int begin = band.low; begin <= band.high; ++begin) {
        squares_[begin] = kNoSquares;
        if (!reach_.IsReached(begin, stage)) continue;
        receive_[begin] = terms_.ReceiveUnits(begin, stage);
        if (!FindFrom(begin, stage)) return std::nullopt;
      }
      std::swap(squares_, next_squares_);
      std::swap(receive_, send_);
    }
    std::vector<int> first_layer;
    for (int stage = 0, begin = 0; stage < terms_.stages(); ++stage) {
      first_layer.push_back(begin);
      begin = next_begin_[reach_.Index(begin, stage)];
    }
    return first_layer;
  }

 private:
  bool FindFrom(int begin, int stage) {
    const ChainReach::Band& next = reach_.band(stage + 1);
    int& next_begin = next_begin_[reach_.Index(begin, stage)];
    absl::uint128& best = squares_[begin];
    const int64_t least_messages = terms_.LeastMessageUnits(stage);
    for (int end = std::max(begin + 1, next.low); end <= next.high; ++end) {
      elapsed_.ExtendTo(end);
      const int64_t compute = elapsed_[end] - elapsed_[begin];
      if (compute + least_messages > bottleneck_ || !terms_.Fits(begin, end, stage)) break;
      if (++looks_ > kMaxEvened) return false;
      if (next_squares_[end] >= best) continue;
      const int64_t units = RangeUnits(
          terms_, begin, end, stage,
          {.compute = compute, .receive = receive_[begin], .send = send_[end]}, bottleneck_ + 1);
      if (units > bottleneck_) continue;
      const absl::uint128 sum = absl::uint128(units) * absl::uint128(units) + next_squares_[end];
      if (sum >= best) continue;
      best = sum;
      next_begin = end;
    }
    return true;
  }

  const ChainTerms& terms_;
  const ChainReach& reach_;
  const int64_t bottleneck_;
  int64_t looks_ = 0;
  // State of the current stage; index: boundary.
  ElapsedRow elapsed_;
  std::vector<int64_t> receive_;
  std::vector<int64_t> send_;
  // The least sum of squares of the stages from this one on, and from the next one on.
  std::vector<absl::uint128> squares_;
  std::vector<absl::uint128> next_squares_;
  std::vector<int> next_begin_;  // index: state of reach_
};

// Finds the bottleneck if all devices are equally fast, neither memory nor messages rule a range
// out, and a stage that begins a layer later takes no longer: then each stage takes as many layers
// as the limit allows, since no cut can have got further with as many stages.
class FullStages {
 public:
  explicit FullStages(const ChainTerms& terms) : terms_(terms) {
    for (int layer = 0; layer < terms.layers(); ++layer) {
      layers_.push_back(terms.LayerUnits(layer, 0));
    }
  }

  static bool Apply(const ChainTerms& terms, int64_t largest_message_bytes) {
    if (terms.limits_memory() || terms.has_extra()) return false;
    for (int stage = 1; stage < terms.stages(); ++stage) {
      if (!terms.HaveEqualSpeeds(stage, 0)) return false;
      const bool is_free =
          !terms.has_messages() ||
          (terms.overlaps_messages() &&
           terms.MessageUnits(stage - 1, largest_message_bytes) <= terms.LowerBound());
      if (!is_free) return false;
    }
    for (int layer = 0; layer + 1 < terms.layers(); ++layer) {
      const int64_t later = terms.StartUnits(layer + 1) - terms.StartUnits(layer);
      if (later > terms.LayerUnits(layer, 0)) return false;
    }
    return true;
  }

  // Returns the bottleneck, or anything up to `at_least` if it is no more.
  int64_t LeastBottleneck(int64_t at_least) {
    int64_t low = std::max(terms_.LowerBound(), at_least);
    if (Probe(low)) return bottleneck_;
    low = needed_;
    Probe(terms_.max_units());
    int64_t high = bottleneck_;
    while (low < high) {
      if (Probe(low + (high - low) / 2)) {
        high = bottleneck_;
      } else {
        low = needed_;
      }
    }
    return high;
  }

 private:
  // Returns true if there is a cut within the limit. Records the slowest range of that cut, or the
  // fastest of all refused ranges.
  bool Probe(int64_t limit) {
    bottleneck_ = 0;
    needed_ = ChainTerms::kNever;
    int end = 0;
    for (int stage = 0; stage < terms_.stages(); ++stage) {
      const int begin = end;
      const int most = terms_.layers() - (terms_.stages() - 1 - stage);
      int64_t units = terms_.StartUnits(begin);
      for (; end < most; ++end) {
        const int64_t longer = units + layers_[static_cast<size_t>(end)];
        if (longer > limit) {
          needed_ = std::min(needed_, longer);
          break;
        }
        units = longer;
      }
      if (end == begin) return false;
      bottleneck_ = std::max(bottleneck_, units);
    }
    return end == terms_.layers();
  }

  const ChainTerms& terms_;
  std::vector<int64_t> layers_;
  int64_t bottleneck_ = 0;
  int64_t needed_ = ChainTerms::kNever;
};

int64_t LargestMessage(const ChainProblem& problem) {
  const std::vector<int64_t>& bytes = problem.boundary_bytes;
  return bytes.empty() ? 0 : std::max<int64_t>(*std::max_element(bytes.begin(), bytes.end()), 0);
}

// Calls `use` with the terms of the problem and a search of them that has found its bottleneck.
template <typename Use>
absl::Status SearchChain(const ChainProblem& problem, double at_least_ns, const Use& use) {
  const int64_t largest_message_bytes = LargestMessage(problem);
  double longest_extra_ns = 0;
  while (true) {
    ASSIGN_OR_RETURN(const ChainTerms terms,
                     ChainTerms::Create(problem, largest_message_bytes, longest_extra_ns));
    int64_t at_least = terms.ToUnits(at_least_ns);
    if (FullStages::Apply(terms, largest_message_bytes)) {
      at_least = FullStages(terms).LeastBottleneck(at_least);
    }
    ChainSearch search(terms);
    if (search.Run(at_least)) {
      use(terms, search);
      return absl::OkStatus();
    }
    if (search.needed() == ChainTerms::kNever) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "no cut of %d layers into %d stages fits the devices", terms.layers(), terms.stages()));
    }
    // Only happens with an extra time that dwarfs all others.
    longest_extra_ns = std::min(terms.ToNs(search.needed()), std::numeric_limits<double>::max());
  }
}

}  // namespace

absl::StatusOr<ChainCut> PartitionChain(const ChainProblem& problem) {
  ChainCut cut;
  RETURN_IF_ERROR(SearchChain(problem, 0, [&](const ChainTerms& terms, ChainSearch& search) {
    EvenCut even(terms, search.ReachWithinBottleneck(), search.bottleneck());
    cut = {even.Find().value_or(search.first_layer()), terms.ToNs(search.bottleneck())};
  }));
  return cut;
}

absl::StatusOr<double> LeastBottleneckNs(const ChainProblem& problem, double at_least_ns) {
  ASSIGN_OR_RETURN(const ChainTerms terms, ChainTerms::Create(problem, LargestMessage(problem)));
  if (FullStages::Apply(terms, LargestMessage(problem))) {
    const int64_t units = FullStages(terms).LeastBottleneck(terms.ToUnits(at_least_ns));
    return std::max(at_least_ns, terms.ToNs(units));
  }
  double bottleneck_ns = at_least_ns;
  RETURN_IF_ERROR(
      SearchChain(problem, at_least_ns, [&](const ChainTerms& used, const ChainSearch& search) {
        bottleneck_ns = std::max(bottleneck_ns, used.ToNs(search.bottleneck()));
      }));
  return bottleneck_ns;
}

}  // namespace stagecoach::partition
