#include "partition/chain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace stagecoach::partition {
namespace {

constexpr int64_t kNoTime = std::numeric_limits<int64_t>::max();
constexpr absl::uint128 kNoSquares = absl::Uint128Max();

absl::Status CheckProblem(const ChainProblem& problem) {
  const int layers = static_cast<int>(problem.layer_ns.size());
  if (problem.stages < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut layers into %d stages: expected at least 1", problem.stages));
  }
  if (problem.stages > layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers into %d stages: every stage needs a layer of its own",
                        layers, problem.stages));
  }
  for (int layer = 0; layer < layers; ++layer) {
    const double ns = problem.layer_ns[layer];
    if (!std::isfinite(ns) || ns < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layer %d takes %g ns: expected a finite time that is not negative", layer, ns));
    }
  }
  return absl::OkStatus();
}

class ChainSolver {
 public:
  explicit ChainSolver(const ChainProblem& problem)
      : problem_(problem),
        layers_(static_cast<int>(problem.layer_ns.size())),
        stages_(problem.stages),
        window_(layers_ - stages_ + 1) {
    SumTimes();
    if (problem_.fits) {
      fits_.resize(static_cast<size_t>(stages_) * window_ * window_, Verdict::kUnknown);
    }
  }

  absl::StatusOr<ChainCut> Solve() {
    FindBottlenecks();
    const int64_t bottleneck = bottlenecks_[stages_ - 1][layers_ - 1];
    if (bottleneck == kNoTime) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("no cut of %d layers into %d stages fits the devices", layers_, stages_));
    }
    FindEvenest(bottleneck);
    ChainCut cut;
    cut.bottleneck_ns = std::ldexp(static_cast<double>(bottleneck), -scale_);
    for (int stage = 0, first = 0; stage < stages_; ++stage) {
      cut.first_layer.push_back(first);
      first = next_first_[stage][first];
    }
    return cut;
  }

 private:
  enum class Verdict : uint8_t { kUnknown, kFits, kTooLarge };

  // Whole numbers make every comparison below exact: the sum of all layers stays under 2^61, a sum
  // of squares under 2^122.
  void SumTimes() {
    const double largest = *std::max_element(problem_.layer_ns.begin(), problem_.layer_ns.end());
    int exponent = 0;
    std::frexp(largest, &exponent);
    scale_ = 61 - exponent - absl::bit_width(static_cast<uint32_t>(layers_));
    ends_.push_back(0);
    for (const double ns : problem_.layer_ns) {
      ends_.push_back(ends_.back() + std::llround(std::ldexp(ns, scale_)));
    }
  }

  int64_t Time(int first, int last) const { return ends_[last + 1] - ends_[first]; }

  // The last layer that leaves one layer for each later stage.
  int LastOf(int stage) const { return layers_ - stages_ + stage; }

  bool Fits(int first, int last, int stage) {
    if (!problem_.fits) return true;
    const size_t row = static_cast<size_t>(stage) * window_ + (first - stage);
    Verdict& verdict = fits_[row * window_ + (last - stage)];
    if (verdict == Verdict::kUnknown) {
      verdict = problem_.fits(first, last, stage) ? Verdict::kFits : Verdict::kTooLarge;
    }
    return verdict == Verdict::kFits;
  }

  // Fills bottlenecks_[stage][last]: the least bottleneck of stages 0..stage over layers 0..last.
  void FindBottlenecks() {
    bottlenecks_.assign(stages_, std::vector<int64_t>(layers_, kNoTime));
    for (int stage = 0; stage < stages_; ++stage) {
      const bool is_last = stage == stages_ - 1;
      for (int last = is_last ? layers_ - 1 : stage; last <= LastOf(stage); ++last) {
        bottlenecks_[stage][last] = LeastBottleneck(stage, last);
      }
    }
  }

  int64_t LeastBottleneck(int stage, int last) {
    int64_t best = kNoTime;
    for (int first = stage == 0 ? 0 : last; first >= stage; --first) {
      const int64_t time = Time(first, last);
      if (time >= best) break;
      const int64_t before = stage == 0 ? 0 : bottlenecks_[stage - 1][first - 1];
      const int64_t bottleneck = std::max(time, before);
      if (bottleneck < best && Fits(first, last, stage)) best = bottleneck;
    }
    return best;
  }

  // Fills squares_[stage][first]: the least sum of squares of stages stage.. over layers first..,
  // none slower than `limit`; and next_first_, where the next stage begins then. It runs from the
  // back so that the earliest choice can be the smallest among equals.
  void FindEvenest(int64_t limit) {
    squares_.assign(stages_, std::vector<absl::uint128>(layers_, kNoSquares));
    next_first_.assign(stages_, std::vector<int>(layers_, layers_));
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      for (int first = stage; first <= (stage == 0 ? 0 : LastOf(stage)); ++first) {
        const bool reachable = stage == 0 || bottlenecks_[stage - 1][first - 1] <= limit;
        if (reachable) FindEvenestFrom(stage, first, limit);
      }
    }
  }

  void FindEvenestFrom(int stage, int first, int64_t limit) {
    const bool is_last = stage == stages_ - 1;
    absl::uint128& best = squares_[stage][first];
    for (int last = is_last ? layers_ - 1 : first; last <= LastOf(stage); ++last) {
      const int64_t time = Time(first, last);
      if (time > limit) break;
      const absl::uint128 after = is_last ? 0 : squares_[stage + 1][last + 1];
      if (after == kNoSquares) continue;
      const absl::uint128 sum = absl::uint128(time) * absl::uint128(time) + after;
      if (sum < best && Fits(first, last, stage)) {
        best = sum;
        next_first_[stage][first] = last + 1;
      }
    }
  }

  const ChainProblem& problem_;
  const int layers_;
  const int stages_;
  const int window_;           // how many layers can be the first (or the last) of one stage
  int scale_ = 0;              // times are in units of 2^-scale_ ns
  std::vector<int64_t> ends_;  // time of the layers before each layer, and of all
  std::vector<Verdict> fits_;  // [stage][first - stage][last - stage]
  std::vector<std::vector<int64_t>> bottlenecks_;
  std::vector<std::vector<absl::uint128>> squares_;
  std::vector<std::vector<int>> next_first_;
};

}  // namespace

absl::StatusOr<ChainCut> PartitionChain(const ChainProblem& problem) {
  if (absl::Status status = CheckProblem(problem); !status.ok()) return status;
  return ChainSolver(problem).Solve();
}

}  // namespace stagecoach::partition
