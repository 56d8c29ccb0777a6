#include "partition/search/plan_options.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "partition/search/explain.h"

namespace stagecoach::partition {
namespace {

struct Bounded {
  size_t index = 0;
  double lower_bound_ns = 0;  // of all its plans
};

class OptionSearch {
 public:
  OptionSearch(const PlannerRequest& request, absl::Span<const ModelOption> options,
               const SearchLimits& limits)
      : request_(request), options_(options), limits_(limits) {}

  absl::StatusOr<ChosenOption> Run() {
    const absl::Time start = absl::Now();
    const std::vector<Bounded> order = ByBound();
    for (size_t i = 0; i < order.size(); ++i) {
      if (!best_.has_value() || order[i].lower_bound_ns < best_->receipt.objective_ns) {
        Try(order[i], order.size() - i);
      }
    }
    if (!best_.has_value()) return NoPlan();
    Receipt& receipt = best_->receipt;
    receipt.lower_bound_ns = std::min(receipt.objective_ns, bound_ns_);
    receipt.considered = considered_;
    receipt.simulated = simulated_;
    receipt.is_cut_short = is_cut_short_;
    receipt.planning = absl::Now() - start;
    return *std::move(best_);
  }

 private:
  PlannerRequest RequestFor(size_t index) const {
    PlannerRequest request = request_;
    request.profile = options_[index].profile;
    request.cluster = options_[index].cluster;
    return request;
  }

  // Those that are refused are left out.
  std::vector<Bounded> ByBound() {
    if (options_.size() == 1) return {Bounded{}};  // the order of one needs no bound
    std::vector<Bounded> order;
    for (size_t i = 0; i < options_.size(); ++i) {
      const absl::StatusOr<double> bound_ns = JointLowerBoundNs(RequestFor(i));
      if (bound_ns.ok()) {
        order.push_back({i, *bound_ns});
      } else {
        failures_.emplace_back(i, bound_ns.status());
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const Bounded& a, const Bounded& b) {
      return a.lower_bound_ns < b.lower_bound_ns;
    });
    return order;
  }

  void Try(const Bounded& option, size_t options_left) {
    SearchLimits own = limits_;
    const absl::Time now = absl::Now();
    own.deadline = now + (limits_.deadline - now) / static_cast<int64_t>(options_left);
    if (limits_.on_better) {
      own.on_better = [this](double objective_ns) {
        const bool is_better = !best_.has_value() || objective_ns < best_->receipt.objective_ns;
        if (is_better) limits_.on_better(objective_ns);
      };
    }
    absl::StatusOr<Receipt> receipt = PlanJointly(RequestFor(option.index), own);
    if (!receipt.ok()) {
      failures_.emplace_back(option.index, receipt.status());
      // It was cut short, or perhaps there is a plan that was not found to fit.
      if (!absl::IsInvalidArgument(receipt.status())) Note(option.lower_bound_ns);
      is_cut_short_ |= !absl::IsInvalidArgument(receipt.status()) &&
                       !absl::IsResourceExhausted(receipt.status());
      return;
    }
    Note(receipt->lower_bound_ns);
    considered_ += receipt->considered;
    simulated_ += receipt->simulated;
    is_cut_short_ |= receipt->is_cut_short;
    const std::string& name = options_[option.index].name;
    receipt->choice.option = name;
    if (receipt->runner_up.has_value()) receipt->runner_up->option = name;
    ChosenOption chosen = {.index = option.index, .receipt = *std::move(receipt)};
    if (!best_.has_value()) {
      best_ = std::move(chosen);
      return;
    }
    if (chosen.receipt.objective_ns < best_->receipt.objective_ns) std::swap(*best_, chosen);
    Compare(chosen.receipt);
  }

  // The best with the best of another option.
  void Compare(const Receipt& loser) {
    Receipt& winner = best_->receipt;
    if (winner.runner_up.has_value() && winner.runner_up->objective_ns <= loser.objective_ns) {
      return;
    }
    winner.runner_up = loser.choice;
    winner.runner_up_reason = WhyItLost(winner, loser);
  }

  void Note(double lower_bound_ns) { bound_ns_ = std::min(bound_ns_, lower_bound_ns); }

  absl::Status NoPlan() const {
    const absl::Status& first = failures_.front().second;
    if (failures_.size() == 1) return first;
    std::vector<std::string> lines;
    for (const auto& [index, status] : failures_) {
      const std::vector<std::string> parts =
          absl::StrSplit(status.message(), absl::MaxSplits('\n', 1));
      lines.push_back(absl::StrCat(options_[index].name, ": ", parts.front()));
    }
    return absl::Status(first.code(), absl::StrJoin(lines, "\n"));
  }

  const PlannerRequest& request_;
  absl::Span<const ModelOption> options_;
  const SearchLimits& limits_;
  std::optional<ChosenOption> best_;
  std::vector<std::pair<size_t, absl::Status>> failures_;
  double bound_ns_ = std::numeric_limits<double>::infinity();
  int considered_ = 0;
  int simulated_ = 0;
  bool is_cut_short_ = false;
};

}  // namespace

absl::StatusOr<ChosenOption> PlanBestOption(const PlannerRequest& request,
                                            absl::Span<const ModelOption> options,
                                            const SearchLimits& limits) {
  return OptionSearch(request, options, limits).Run();
}

}  // namespace stagecoach::partition
