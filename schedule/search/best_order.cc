#include "schedule/search/best_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "schedule/search/order_model.h"
#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {
namespace {

// Number of nodes that take as long as judging an order.
constexpr int64_t kNodesPerJudgement = 50;
// Number of nodes between questions whether to continue.
constexpr int64_t kNodesPerQuestion = 1000;
// Number of orders with the same passes done that are kept to rule out others.
constexpr size_t kMostKept = 16;

class OrderTree {
 public:
  OrderTree(const AutomaticRequest& request, absl::Span<const PassNeeds> needs)
      : model_(request, needs) {}

  struct Found {
    std::optional<Schedule> schedule;
    int64_t step_ns = 0;   // as judged
    int64_t least_ns = 0;  // best of the first tree, in its own times
    int64_t open_ns = 0;   // no order that was not visited is faster
  };
  // Searches one of the two trees, within the limits of both. Improves `found`, whose step is to be
  // beaten.
  void Search(bool is_exact, OrderJudge judge, const BestOrderLimits& limits, Found& found);
  int64_t nodes() const { return nodes_; }
  // Returns true if the limits are reached.
  bool IsOver();

 private:
  void Expand(OrderModel::Node& node, OrderJudge judge);
  void Judge(const OrderModel::Node& node, OrderJudge judge);
  bool IsDominated(const OrderModel::Node& node);

  OrderModel model_;
  bool is_exact_ = false;
  int64_t nodes_ = 0;
  int64_t asked_at_ = 0;
  bool is_over_ = false;
  const BestOrderLimits* limits_ = nullptr;
  Found* found_ = nullptr;
  absl::flat_hash_map<uint64_t, std::vector<OrderModel::Times>> known_;  // first tree
};

void OrderTree::Search(bool is_exact, OrderJudge judge, const BestOrderLimits& limits,
                       Found& found) {
  is_exact_ = is_exact;
  limits_ = &limits;
  found_ = &found;
  known_.clear();
  found.least_ns = found.open_ns = found.step_ns;
  OrderModel::Node root = model_.Root();
  root.bound_ns = model_.BoundNs(root);
  if (root.bound_ns < found.step_ns) Expand(root, judge);
}

bool OrderTree::IsOver() {
  if (nodes_ >= asked_at_ + kNodesPerQuestion && limits_->is_cut_short != nullptr) {
    asked_at_ = nodes_;
    is_over_ = limits_->is_cut_short();
  }
  is_over_ = is_over_ || nodes_ >= limits_->nodes;
  return is_over_;
}

void OrderTree::Expand(OrderModel::Node& node, OrderJudge judge) {
  const auto most_ns = [&] {
    return is_exact_ ? found_->step_ns : std::min(found_->step_ns, found_->least_ns);
  };
  const int rank = model_.RankToChoose(node);
  if (rank < 0) {
    if (model_.IsComplete(node)) Judge(node, judge);
    return;  // if not judged, all ranks wait for each other
  }
  if (!is_exact_ && IsDominated(node)) return;
  const OrderModel::Choices choices = model_.ChoicesOf(node, rank, is_exact_);
  std::vector<OrderModel::Node> children;
  children.reserve(choices.size());
  for (const OrderModel::Choice& choice : choices) {
    ++nodes_;
    OrderModel::Node& child = children.emplace_back(node);
    model_.Take(child, rank, choice);
    child.bound_ns = model_.BoundNs(child);
    if (child.bound_ns >= most_ns()) children.pop_back();
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < children.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return children[a].bound_ns < children[b].bound_ns; });
  for (const size_t i : order) {
    if (children[i].bound_ns >= most_ns()) return;
    if (IsOver()) {
      found_->open_ns = std::min(found_->open_ns, children[i].bound_ns);
      return;
    }
    Expand(children[i], judge);
  }
}

void OrderTree::Judge(const OrderModel::Node& node, OrderJudge judge) {
  const int64_t step_ns = model_.StepNs(node);
  if (step_ns >= found_->step_ns) return;
  if (!is_exact_) {
    if (step_ns >= found_->least_ns) return;
    found_->least_ns = step_ns;
  }
  const OrderProblem& problem = model_.problem();
  Order order;
  order.fused.assign(node.fused.begin(),
                     node.fused.begin() + problem.stages * problem.micro_batches);
  for (int r = 0; r < problem.ranks; ++r) {
    const auto begin = node.lists[static_cast<size_t>(r)].begin();
    order.lists.emplace_back(begin, begin + node.lengths[static_cast<size_t>(r)]);
  }
  Schedule schedule = problem.ToSchedule(order);
  nodes_ += kNodesPerJudgement;
  const std::optional<int64_t> judged_ns = judge(schedule);
  if (!judged_ns.has_value() || *judged_ns >= found_->step_ns) return;
  found_->step_ns = *judged_ns;
  found_->schedule = std::move(schedule);
}

// Returns true if a known order has done the same, nowhere later; otherwise adds this one.
bool OrderTree::IsDominated(const OrderModel::Node& node) {
  OrderModel::Times times = model_.TimesOf(node);
  std::vector<OrderModel::Times>& others = known_[model_.KeyOf(node)];
  const auto is_within = [](const OrderModel::Times& a, const OrderModel::Times& b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](int64_t x, int64_t y) { return x <= y; });
  };
  for (const OrderModel::Times& other : others) {
    if (is_within(other, times)) return true;
  }
  others.erase(
      std::remove_if(others.begin(), others.end(),
                     [&](const OrderModel::Times& other) { return is_within(times, other); }),
      others.end());
  if (others.size() < kMostKept) others.push_back(std::move(times));
  return false;
}

}  // namespace

BestOrder FindBestOrder(const AutomaticRequest& request, absl::Span<const PassNeeds> needs,
                        const BestOrderLimits& limits, OrderJudge judge) {
  STAGECOACH_CHECK(IsTiny(request.ranks, request.micro_batches, request.chunks),
                   "all orders of more passes are too many");
  OrderTree tree(request, needs);
  OrderTree::Found found;
  found.step_ns = limits.below_ns;
  tree.Search(/*is_exact=*/false, judge, limits, found);
  int64_t bound_ns = std::min(found.least_ns, found.open_ns);
  if (bound_ns < found.step_ns && !tree.IsOver()) {
    tree.Search(/*is_exact=*/true, judge, limits, found);
    bound_ns = std::max(bound_ns, found.open_ns);
  }
  return {.schedule = std::move(found.schedule),
          .step_ns = found.step_ns,
          .bound_ns = std::min(bound_ns, found.step_ns),
          .nodes = tree.nodes()};
}

int64_t OrderBoundNs(const AutomaticRequest& request) {
  OrderModel model(request, {});
  return model.BoundNs(model.Root());
}

}  // namespace stagecoach::schedule
