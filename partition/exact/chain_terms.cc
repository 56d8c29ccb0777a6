#include "partition/exact/chain_terms.h"

#include <cmath>
#include <string>

#include "absl/numeric/bits.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "partition/cost/profile.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

using schedule::kMaxSizeBytes;
using schedule::kMaxTimeNs;

// Ensures that sums of bytes cannot overflow.
constexpr double kMaxTotalBytes = 4.6e18;
constexpr double kMaxSpeed = 1e100;
constexpr int64_t kMaxMicroBatches = int64_t{1} << 32;

absl::Status CheckSize(absl::string_view field, size_t size, size_t expected,
                       absl::string_view of) {
  if (size == 0 || size == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s has %d entries: expected %d, one for each %s, or none", field, size, expected, of));
}

absl::Status CheckTimes(absl::string_view what, const std::vector<double>& times_ns) {
  for (size_t i = 0; i < times_ns.size(); ++i) {
    if (std::isfinite(times_ns[i]) && times_ns[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "layer %d %s %g ns: expected a finite time that is not negative", i, what, times_ns[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(absl::string_view field, const std::vector<int64_t>& values, int64_t most,
                         absl::string_view of) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s of %s %d is %d: expected 0 to %d", field, of, i, values[i], most));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const ChainProblem& problem) {
  const size_t layers = problem.layer_ns.size();
  const size_t stages = static_cast<size_t>(problem.stages);
  RETURN_IF_ERROR(CheckSize("speeds", problem.speeds.size(), stages, "stage"));
  RETURN_IF_ERROR(CheckSize("start_ns", problem.start_ns.size(), layers, "layer"));
  RETURN_IF_ERROR(CheckSize("boundary_bytes", problem.boundary_bytes.size(), layers, "layer"));
  if (!problem.links.empty() || stages > 1) {
    RETURN_IF_ERROR(CheckSize("links", problem.links.size(), stages - 1, "stage but the last"));
  }
  RETURN_IF_ERROR(CheckSize("layer_bytes", problem.layer_bytes.size(), layers, "layer"));
  RETURN_IF_ERROR(
      CheckSize("layer_stash_bytes", problem.layer_stash_bytes.size(), layers, "layer"));
  RETURN_IF_ERROR(CheckSize("in_flight", problem.in_flight.size(), stages, "stage"));
  return CheckSize("budget_bytes", problem.budget_bytes.size(), stages, "stage");
}

absl::Status CheckMessages(const ChainProblem& problem) {
  if (problem.micro_batches < 1 || problem.micro_batches > kMaxMicroBatches) {
    return absl::InvalidArgumentError(absl::StrFormat("%d micro-batches: expected 1 to %d",
                                                      problem.micro_batches, kMaxMicroBatches));
  }
  for (size_t i = 0; i < problem.links.size(); ++i) {
    const schedule::Link& link = problem.links[i];
    const bool is_speed = link.bytes_per_second == 0.0 ||
                          (link.bytes_per_second >= 1.0 && std::isfinite(link.bytes_per_second));
    if (is_speed && link.latency_ns >= 0 && link.latency_ns <= kMaxTimeNs) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "link %d has a latency of %d ns and %g bytes per second: expected 0 to %d ns, and at "
        "least 1, or 0 for no limit",
        i, link.latency_ns, link.bytes_per_second, kMaxTimeNs));
  }
  return CheckCounts("boundary_bytes", problem.boundary_bytes, kMaxSizeBytes, "layer");
}

absl::Status CheckMemory(const ChainProblem& problem) {
  RETURN_IF_ERROR(CheckCounts("layer_bytes", problem.layer_bytes, kMaxSizeBytes, "layer"));
  RETURN_IF_ERROR(
      CheckCounts("layer_stash_bytes", problem.layer_stash_bytes, kMaxSizeBytes, "layer"));
  RETURN_IF_ERROR(CheckCounts("in_flight", problem.in_flight, kMaxMicroBatches, "stage"));
  double total = 0;
  for (const int64_t bytes : problem.layer_stash_bytes) total += static_cast<double>(bytes);
  if (!problem.in_flight.empty()) {
    total *=
        static_cast<double>(*std::max_element(problem.in_flight.begin(), problem.in_flight.end()));
  }
  for (const int64_t bytes : problem.layer_bytes) total += static_cast<double>(bytes);
  if (total <= kMaxTotalBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "all layers on one stage would need %g bytes: expected at most %g", total, kMaxTotalBytes));
}

absl::Status CheckProblem(const ChainProblem& problem) {
  const size_t layers = problem.layer_ns.size();
  if (problem.stages < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut layers into %d stages: expected at least 1", problem.stages));
  }
  if (static_cast<size_t>(problem.stages) > layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers into %d stages: every stage needs a layer of its own",
                        layers, problem.stages));
  }
  if (layers > static_cast<size_t>(kMaxLayers)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers: expected at most %d", layers, kMaxLayers));
  }
  RETURN_IF_ERROR(CheckSizes(problem));
  RETURN_IF_ERROR(CheckTimes("takes", problem.layer_ns));
  RETURN_IF_ERROR(CheckTimes("starts after", problem.start_ns));
  for (size_t i = 0; i < problem.speeds.size(); ++i) {
    if (problem.speeds[i] >= 1 / kMaxSpeed && problem.speeds[i] <= kMaxSpeed) continue;
    return absl::InvalidArgumentError(absl::StrFormat("stage %d has speed %g: expected %g to %g", i,
                                                      problem.speeds[i], 1 / kMaxSpeed, kMaxSpeed));
  }
  RETURN_IF_ERROR(CheckMessages(problem));
  return CheckMemory(problem);
}

// Returns the smallest e with |value| < 2^e; very small for 0.
int ExponentOf(double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return value == 0 ? -4096 : exponent;
}

double LargestOf(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

template <typename T>
std::vector<T> SumsBefore(const std::vector<T>& values, size_t size) {
  std::vector<T> sums(size + 1, 0);
  for (size_t i = 0; i < values.size(); ++i) sums[i + 1] = sums[i] + values[i];
  return sums;
}

}  // namespace

absl::StatusOr<ChainTerms> ChainTerms::Create(const ChainProblem& problem,
                                              int64_t largest_message_bytes,
                                              double longest_extra_ns) {
  RETURN_IF_ERROR(CheckProblem(problem));
  ChainTerms terms(problem);
  terms.SetUnit(largest_message_bytes, longest_extra_ns);
  terms.bytes_before_ = SumsBefore(problem.layer_bytes, problem.layer_ns.size());
  terms.stash_before_ = SumsBefore(problem.layer_stash_bytes, problem.layer_ns.size());
  return terms;
}

// Scales layers and speeds to numbers near 1 before they are added or divided, since the largest
// times would overflow.
void ChainTerms::SetUnit(int64_t largest_message_bytes, double longest_extra_ns) {
  speeds_ = problem_->speeds;
  if (speeds_.empty()) speeds_.assign(static_cast<size_t>(problem_->stages), 1.0);
  const int speed_exponent = ExponentOf(*std::min_element(speeds_.begin(), speeds_.end())) - 1;
  for (double& speed : speeds_) speed = std::ldexp(speed, -speed_exponent);  // at least 1

  const int layer_exponent = ExponentOf(LargestOf(problem_->layer_ns));
  double total = 0;
  for (const double ns : problem_->layer_ns) total += std::ldexp(ns, -layer_exponent);

  double message_ns = 0;
  for (const schedule::Link& link : problem_->links) {
    message_ns = std::max(message_ns, static_cast<double>(link.TransferNs(largest_message_bytes)));
  }
  const double messages_per_link = 2.0 * static_cast<double>(problem_->micro_batches);
  const int largest_exponent =
      std::max({total == 0 ? -4096 : ExponentOf(total) + layer_exponent - speed_exponent,
                ExponentOf(LargestOf(problem_->start_ns)),
                ExponentOf(messages_per_link * message_ns), ExponentOf(longest_extra_ns)});
  const int bits = std::min(
      60, (127 - static_cast<int>(absl::bit_width(static_cast<uint32_t>(problem_->stages)))) / 2);
  max_units_ = int64_t{1} << bits;
  // A stage has at most five such terms: its layers, the start, two messages and the extra time.
  scale_ = largest_exponent == -4096 ? 0 : bits - 3 - largest_exponent;

  for (const double ns : problem_->layer_ns) {
    layers_.push_back(std::ldexp(ns, scale_ - speed_exponent));
  }
  work_before_ = SumsBefore(layers_, layers_.size());
  speed_before_ = SumsBefore(speeds_, speeds_.size());
  for (const double ns : problem_->start_ns) starts_.push_back(Round(std::ldexp(ns, scale_)));
  const std::vector<int64_t>& boundaries = problem_->boundary_bytes;
  if (boundaries.size() > 1) {  // nothing passes the first
    least_message_bytes_ = *std::min_element(boundaries.begin() + 1, boundaries.end());
  }
  // The factor is out of range only if all messages take no time.
  if (message_ns > 0) message_units_per_ns_ = std::ldexp(messages_per_link, scale_);
}

double ChainTerms::ToNs(int64_t units) const {
  return std::ldexp(static_cast<double>(units), -scale_);
}

int64_t ChainTerms::ToUnits(double ns) const {
  const double units = std::ldexp(ns, scale_);
  return units < static_cast<double>(max_units_) ? Round(units) : max_units_;
}

int64_t ChainTerms::ExtraUnits(int first, int last, int stage) const {
  const double ns = problem_->extra_ns(first, last, stage);
  STAGECOACH_CHECK(ns >= 0, "extra_ns gives a time of 0 or more");
  if (std::isinf(ns)) return kNever;
  const double units = std::ldexp(ns, scale_);
  return Round(std::min(units, std::ldexp(1.0, 62)));
}

int64_t ChainTerms::LeastMessageUnits(int stage) const {
  if (!has_messages() || overlaps_messages()) return 0;
  int64_t units = 0;
  if (stage > 0) units += MessageUnits(stage - 1, least_message_bytes_);
  if (stage + 1 < stages()) units += MessageUnits(stage, least_message_bytes_);
  return units;
}

int64_t ChainTerms::LowerBound() const {
  double work = work_before_.back();
  for (int stage = 0; stage < stages(); ++stage) {
    work += static_cast<double>(LeastMessageUnits(stage)) * speeds_[stage];
  }
  // Rounding to units may have made every layer shorter, and adding them may have made this sum
  // larger.
  const double mean = work / speed_before_.back() * (1 - 1e-10) - static_cast<double>(layers());
  const double fastest = *std::max_element(speeds_.begin(), speeds_.end());
  const int64_t largest_layer = Round(LargestOf(layers_) / fastest);
  return std::max({largest_layer, static_cast<int64_t>(mean), LatestStart()});
}

// A layer's stage takes no less than if it began with that layer, if that saves more than the later
// start costs.
int64_t ChainTerms::LatestStart() const {
  if (starts_.empty()) return 0;
  const int fastest = FastestStage();
  int64_t latest = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    const int64_t own = LayerUnits(layer, fastest);
    latest = std::max(latest, StartUnits(layer) + own);
    const bool is_last = layer + 1 == layers();
    if (!is_last && StartUnits(layer + 1) - StartUnits(layer) > own) return 0;
  }
  return latest;
}

}  // namespace stagecoach::partition
