#ifndef STAGECOACH_PARTITION_EXACT_CHAIN_TERMS_H_
#define STAGECOACH_PARTITION_EXACT_CHAIN_TERMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/exact/chain.h"

namespace stagecoach::partition {

// The terms of a ChainProblem as integers, so that every sum and comparison of PartitionChain and
// PartitionGraph is exact: times are multiples of a unit, a power of two of a ns. The time of a
// layer is rounded for each speed separately, so that stages of equal layers on equal devices take
// equally long, wherever they begin. Boundary b lies before layer b.
class ChainTerms {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Checks the problem: errors are those of PartitionChain. `largest_message_bytes`: the largest
  // argument of MessageUnits. `longest_extra_ns` makes the unit coarse enough for it. The problem
  // must outlive the terms.
  static absl::StatusOr<ChainTerms> Create(const ChainProblem& problem,
                                           int64_t largest_message_bytes,
                                           double longest_extra_ns = 0);

  int layers() const { return static_cast<int>(layers_.size()); }
  int stages() const { return static_cast<int>(speeds_.size()); }
  // No stage may take longer; without extra_ns none can. The sum of its squares over all stages
  // fits into 128 bits.
  int64_t max_units() const { return max_units_; }
  double ToNs(int64_t units) const;
  // Returns the units, at most max_units().
  int64_t ToUnits(double ns) const;

  int64_t LayerUnits(int layer, int stage) const { return Round(layers_[layer] / speeds_[stage]); }
  bool HaveEqualSpeeds(int stage, int other) const { return speeds_[stage] == speeds_[other]; }
  // Returns the first of the fastest stages.
  int FastestStage() const {
    return static_cast<int>(std::max_element(speeds_.begin(), speeds_.end()) - speeds_.begin());
  }
  int64_t StartUnits(int layer) const { return starts_.empty() ? 0 : starts_[layer]; }

  bool has_messages() const {
    return !problem_->links.empty() && !problem_->boundary_bytes.empty();
  }
  bool overlaps_messages() const { return problem_->overlaps_messages; }
  // Returns the time of both messages of every micro-batch over the link from `stage` to the next
  // one.
  int64_t MessageUnits(int stage, int64_t bytes) const {
    const int64_t ns = problem_->links[static_cast<size_t>(stage)].TransferNs(bytes);
    return Round(message_units_per_ns_ * static_cast<double>(ns));
  }
  // Return the time of messages if the stage ends, or begins, at that boundary of the chain.
  int64_t SendUnits(int boundary, int stage) const {
    if (!has_messages() || boundary == layers()) return 0;
    return MessageUnits(stage, problem_->boundary_bytes[static_cast<size_t>(boundary)]);
  }
  int64_t ReceiveUnits(int boundary, int stage) const {
    return boundary == 0 ? 0 : SendUnits(boundary, stage - 1);
  }
  // Returns the message time that no range of a stage can avoid, in addition to its computing time.
  int64_t LeastMessageUnits(int stage) const;

  bool has_extra() const { return problem_->extra_ns != nullptr; }
  // Returns kNever if the range is not allowed. May exceed max_units(), and is then a lower bound.
  int64_t ExtraUnits(int first, int last, int stage) const;

  bool limits_memory() const { return !problem_->budget_bytes.empty(); }
  int64_t BudgetBytes(int stage) const { return problem_->budget_bytes[stage]; }
  // Returns the bytes of the layers before a boundary; those of a range are the difference of two.
  int64_t BytesBefore(int boundary, int stage) const {
    return bytes_before_[boundary] + InFlight(stage) * stash_before_[boundary];
  }
  bool Fits(int begin, int end, int stage) const {
    return !limits_memory() ||
           BytesBefore(end, stage) - BytesBefore(begin, stage) <= BudgetBytes(stage);
  }
  int64_t InFlight(int stage) const {
    return problem_->in_flight.empty() ? 1 : problem_->in_flight[stage];
  }

  // Returns the time of a stage that computes for `compute` units.
  int64_t StageUnits(int64_t compute, int64_t receive, int64_t send) const {
    return problem_->overlaps_messages ? std::max({compute, receive, send})
                                       : compute + receive + send;
  }

  // Returns the mean time of the stages before `stage` for the layers before a boundary.
  double MeanUnitsBefore(int boundary, int stage) const {
    return stage == 0 ? 0.0 : work_before_[boundary] / speed_before_[stage];
  }
  // Returns a time that no cut can beat.
  int64_t LowerBound() const;

 private:
  explicit ChainTerms(const ChainProblem& problem) : problem_(&problem) {}
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): never negative
  static int64_t Round(double units) { return static_cast<int64_t>(units + 0.5); }
  int64_t LatestStart() const;
  void SetUnit(int64_t largest_message_bytes, double longest_extra_ns);

  const ChainProblem* problem_;
  int64_t max_units_ = 0;
  int scale_ = 0;                     // a unit is 2^-scale_ ns
  std::vector<double> layers_;        // in units at a speed of 1, not rounded
  std::vector<double> speeds_;        // index: stage; scaled as the layers are
  std::vector<double> work_before_;   // sums of layers_; index: boundary
  std::vector<double> speed_before_;  // sums of speeds_
  std::vector<int64_t> starts_;       // index: layer; or empty
  int64_t least_message_bytes_ = 0;
  double message_units_per_ns_ = 0;  // both directions, all micro-batches
  std::vector<int64_t> bytes_before_;
  std::vector<int64_t> stash_before_;
};

// Running sums of the times of a stage's layers: the difference of two boundaries is the time of
// the layers between them.
class ElapsedRow {
 public:
  // The terms must outlive the row.
  explicit ElapsedRow(const ChainTerms& terms)
      : terms_(terms), elapsed_(static_cast<size_t>(terms.layers()) + 1) {}

  // Switches to this stage, between `begin` and as far as ExtendTo has gone. A stage as fast as the
  // last one takes over its sums.
  void Start(int begin, int stage) {
    if (stage_ < 0 || !terms_.HaveEqualSpeeds(stage_, stage) || begin < low_ || begin > high_) {
      low_ = high_ = begin;
      elapsed_[begin] = 0;
    }
    stage_ = stage;
  }
  void ExtendTo(int end) {
    for (; high_ < end; ++high_) {
      elapsed_[high_ + 1] = elapsed_[high_] + terms_.LayerUnits(high_, stage_);
    }
  }
  int64_t operator[](int boundary) const { return elapsed_[boundary]; }

 private:
  const ChainTerms& terms_;
  std::vector<int64_t> elapsed_;  // index: boundary
  int stage_ = -1;
  int low_ = 0;
  int high_ = 0;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_CHAIN_TERMS_H_
