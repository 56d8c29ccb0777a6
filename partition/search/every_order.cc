#include "partition/search/every_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/cost/stage_memory.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/plan/stash_bytes.h"
#include "partition/search/best_cut.h"
#include "schedule/generators/generators.h"
#include "schedule/ir/placement.h"
#include "schedule/search/best_order.h"

namespace stagecoach::partition {
namespace {

using schedule::AlignBlock;
using schedule::Op;
using schedule::Placement;
using schedule::Rank;
using schedule::Schedule;
using schedule::StageId;
using schedule::StageMemory;

// Bounds of the search, whatever the machine: the nodes for all cuts together, and for one.
constexpr int64_t kMaxNodes = 1'000'000;
constexpr int64_t kMaxNodesOfACut = 200'000;
// Cuts with each set of layers that recompute.
constexpr int64_t kMaxVariants = int64_t{1} << 14;

// A combination but for its order and its cut.
using ShapeAndPlacement = std::tuple<int, int, int, LayerOrder, Placement>;

// A cut, with what no order of it can beat.
struct Variant {
  CutEvaluator::Cut cut;
  int64_t bound_ns = 0;
};

// All ways to cut so many layers.
std::vector<std::vector<int>> AllCuts(int layers, int stages) {
  std::vector<std::vector<int>> cuts = {{0}};
  for (int stage = 1; stage < stages; ++stage) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& cut : cuts) {
      for (int first = cut.back() + 1; first <= layers - stages + stage; ++first) {
        longer.push_back(cut);
        longer.back().push_back(first);
      }
    }
    cuts = std::move(longer);
  }
  return cuts;
}

// Any order of those ranks: each micro-batch on its own, with BW or with B and W.
Schedule InTurn(const Candidate& candidate, Placement placement, bool splits_backward) {
  const auto stages = static_cast<int32_t>(candidate.num_stages());
  Schedule schedule;
  schedule.name = "auto";
  schedule.num_micro_batches = candidate.micro_batches_of_each();
  schedule.rank_of_stage = schedule::PlaceStages(placement, candidate.ranks, candidate.chunks);
  schedule.actions.resize(static_cast<size_t>(candidate.ranks));
  const auto add = [&](Op op, int32_t stage, int32_t i) {
    const Rank rank = schedule.rank_of(StageId(stage));
    schedule.actions[static_cast<size_t>(rank.value())].push_back(
        {.op = op, .stage = StageId(stage), .micro_batch = schedule::MicroBatch(i)});
  };
  for (int32_t i = 0; i < schedule.num_micro_batches; ++i) {
    for (int32_t stage = 0; stage < stages; ++stage) add(Op::kForward, stage, i);
    for (int32_t stage = stages; stage-- > 0;) {
      add(splits_backward ? Op::kBackwardInput : Op::kBackward, stage, i);
      if (splits_backward) add(Op::kBackwardWeight, stage, i);
    }
  }
  return schedule;
}

// Whether the updates of any rank wait until all ranks have come to them.
bool MeetsBeforeUpdates(const Schedule& lowered) {
  for (const schedule::Action& action : lowered.actions.front()) {
    if (action.op == Op::kStep) return false;
    if (schedule::IsCollective(action.op)) return true;
  }
  return false;
}

// All orders of one combination.
class ShapeOrders {
 public:
  ShapeOrders(const PlannerRequest& request, CandidateSpace& space, FoundPlans& plans,
              const Candidate& candidate, Placement placement, CutEvaluator fused,
              CutEvaluator split)
      : request_(request),
        space_(space),
        plans_(plans),
        candidate_(candidate),
        placement_(placement),
        pipeline_(std::move(fused)),
        split_(std::move(split)) {}

  // Adds to `result` what it finds; `nodes_left`: of all trees.
  absl::Status Search(int64_t& nodes_left, EveryOrder& result) {
    const auto note = [&](double bound_ns) {
      result.bound_ns = std::min(result.bound_ns, bound_ns);
    };
    std::vector<Variant> variants = Variants();
    if (!has_all_variants_) note(candidate_.lower_bound_ns);
    for (const Variant& variant : variants) {
      const auto bound_ns = static_cast<double>(variant.bound_ns);
      if (plans_.IsHopeless(bound_ns)) break;  // nor are those that follow better
      if (nodes_left <= 0 || plans_.budget().IsReached()) {
        note(bound_ns);
        break;
      }
      ++result.considered;
      ASSIGN_OR_RETURN(const double known_ns, SearchCut(variant, nodes_left));
      note(known_ns);
    }
    return absl::OkStatus();
  }

 private:
  bool MayRecompute() const { return request_.may_recompute && request_.cluster.limits_memory(); }

  // The most promising first.
  std::vector<Variant> Variants() {
    const std::vector<std::vector<int>> cuts =
        AllCuts(pipeline_.num_layers(), pipeline_.num_stages());
    std::vector<int> able;
    for (int layer = 0; MayRecompute() && layer < pipeline_.num_layers(); ++layer) {
      const LayerCost& cost = pipeline_.layers().layers[static_cast<size_t>(layer)];
      if (cost.recompute_stash_bytes.has_value()) able.push_back(layer);
    }
    has_all_variants_ =
        able.size() < 32 && static_cast<int64_t>(cuts.size()) <= (kMaxVariants >> able.size());
    if (!has_all_variants_) able.clear();
    std::vector<Variant> variants;
    for (const std::vector<int>& first_layer : cuts) {
      for (uint32_t set = 0; set < uint32_t{1} << able.size(); ++set) {
        Variant variant = {{first_layer, {}}};
        for (size_t i = 0; i < able.size(); ++i) {
          if ((set >> i & 1U) != 0) variant.cut.recomputed.push_back(able[i]);
        }
        variant.bound_ns = schedule::OrderBoundNs(RequestFor(variant.cut));
        variants.push_back(std::move(variant));
      }
    }
    std::stable_sort(variants.begin(), variants.end(),
                     [](const Variant& a, const Variant& b) { return a.bound_ns < b.bound_ns; });
    return variants;
  }

  schedule::AutomaticRequest RequestFor(const CutEvaluator::Cut& cut) const {
    schedule::AutomaticRequest search;
    search.ranks = candidate_.ranks;
    search.micro_batches = candidate_.micro_batches_of_each();
    search.chunks = candidate_.chunks;
    search.placement = placement_;
    search.costs = pipeline_.CostsOf(cut);
    search.objective = schedule::OrderObjective::kStep;
    search.sends = pipeline_.sends();
    if (!search.costs.updates_in_backward && MeetsBeforeUpdates(pipeline_.training())) {
      TakeUpdatesTogether(search.costs);
    }
    return search;
  }

  // Each rank's updates end with those of the slowest, as if no rank began sooner than all.
  void TakeUpdatesTogether(schedule::Costs& costs) const {
    std::vector<int64_t> updates_ns(static_cast<size_t>(candidate_.ranks));
    for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
      updates_ns[static_cast<size_t>(pipeline_.rank_of(stage))] +=
          costs.stages[static_cast<size_t>(stage)].step_ns;
    }
    const int64_t longest_ns = *std::max_element(updates_ns.begin(), updates_ns.end());
    for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
      // The first stages of the ranks.
      costs.stages[static_cast<size_t>(stage)].step_ns =
          stage < candidate_.ranks ? costs.collectives.ties_ns + longest_ns : 0;
    }
  }

  // What of a rank's memory is left under any order, and what stages take of that at least.
  std::vector<schedule::PassNeeds> LimitMemory(const CutEvaluator::Cut& cut,
                                               schedule::AutomaticRequest& search) const {
    // As BW has what it needs elsewhere than B and W have, the least of both.
    const std::vector<StageMemory> fused = pipeline_.Memories(cut);
    std::vector<StageMemory> memory = split_.Memories(cut);
    std::vector<int64_t> resident_bytes(static_cast<size_t>(candidate_.ranks));
    std::vector<int64_t> workspace_bytes(resident_bytes.size());
    for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
      const StageMemory& other = fused[static_cast<size_t>(stage)];
      StageMemory& own = memory[static_cast<size_t>(stage)];
      own.stash_bytes = std::min(own.stash_bytes, other.stash_bytes);
      own.weight_stash_bytes = std::min(own.weight_stash_bytes, other.weight_stash_bytes);
      const auto rank = static_cast<size_t>(pipeline_.rank_of(stage));
      resident_bytes[rank] += AlignBlock(own.parameter_bytes) + AlignBlock(own.gradient_bytes) +
                              AlignBlock(own.optimizer_bytes) +
                              AlignBlock(own.other_resident_bytes);
      workspace_bytes[rank] = std::max(
          workspace_bytes[rank], AlignBlock(std::min(own.workspace_bytes, other.workspace_bytes)));
      // Neighbors on one rank share what passes between them.
      const bool shares = stage > 0 && pipeline_.rank_of(stage - 1) == pipeline_.rank_of(stage);
      if (shares) memory[static_cast<size_t>(stage) - 1].output_bytes = 0;
    }
    search.stash = StashBytes(memory);
    // The loss fills it.
    search.stash.back().forward +=
        static_cast<double>(AlignBlock(memory.back().output_gradient_bytes));
    for (int rank = 0; rank < candidate_.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const int64_t memory_bytes = pipeline_.devices_of(rank).memory_bytes;
      search.stash_limit.push_back(
          memory_bytes == kUnlimitedBytes
              ? std::numeric_limits<double>::infinity()
              : static_cast<double>(memory_bytes - resident_bytes[r] - workspace_bytes[r]));
    }
    std::vector<schedule::PassNeeds> needs;
    for (int stage = 0; stage < pipeline_.num_stages(); ++stage) {
      needs.push_back(NeedsOf(stage, memory[static_cast<size_t>(stage)]));
    }
    return needs;
  }

  // What is not in its stash.
  schedule::PassNeeds NeedsOf(int stage, const StageMemory& memory) const {
    const auto bytes_of = [](int64_t bytes) { return static_cast<double>(AlignBlock(bytes)); };
    const auto within_forward = [&](int64_t bytes, schedule::LastUse last_use) {
      return last_use == schedule::LastUse::kForward ? bytes_of(bytes) : 0.0;
    };
    const Schedule& training = pipeline_.training();
    const bool is_last = stage + 1 == pipeline_.num_stages();
    schedule::PassNeeds needs;
    const double output = within_forward(memory.output_bytes, memory.output_last_use);
    needs.forward = output + within_forward(memory.input_bytes, memory.input_last_use);
    needs.fused = bytes_of(memory.input_gradient_bytes) +
                  (is_last ? 0.0 : bytes_of(memory.output_gradient_bytes));
    needs.backward = needs.fused + bytes_of(memory.gradient_stash_bytes);
    if (training.sends_to_next(StageId(stage))) needs.sent_forward = output;
    if (training.receives_from_previous(StageId(stage))) {
      needs.sent_backward = bytes_of(memory.input_gradient_bytes);
    }
    return needs;
  }

  // Returns a time that no order of the cut can beat, unless it beats the best plan's.
  absl::StatusOr<double> SearchCut(const Variant& variant, int64_t& nodes_left) {
    schedule::AutomaticRequest search = RequestFor(variant.cut);
    std::vector<schedule::PassNeeds> needs;
    if (request_.cluster.limits_memory()) needs = LimitMemory(variant.cut, search);
    schedule::BestOrderLimits limits = {
        .nodes = std::min(nodes_left, kMaxNodesOfACut),
        .is_cut_short = [&] { return plans_.budget().IsReached(); }};
    if (!plans_.empty()) limits.below_ns = static_cast<int64_t>(plans_.best().found.objective_ns);
    const schedule::BestOrder best = schedule::FindBestOrder(
        search, needs, limits, [&](const Schedule& order) { return StepNs(order, variant.cut); });
    nodes_left -= best.nodes;
    if (best.schedule.has_value()) {
      BestCutOptions options = plans_.CutOptions();
      options.only_cut = variant.cut.first_layer;
      options.may_recompute = options.may_recompute && !variant.cut.recomputed.empty();
      RETURN_IF_ERROR(plans_.Consider(candidate_, *best.schedule, options));
    }
    return static_cast<double>(best.bound_ns);
  }

  // Nothing if it does not fit, or cannot be performed.
  std::optional<int64_t> StepNs(const Schedule& order, const CutEvaluator::Cut& cut) {
    plans_.CountSimulated(1);
    absl::StatusOr<CutEvaluator> pipeline = space_.EvaluatorOf(candidate_, order);
    if (!pipeline.ok()) return std::nullopt;
    const absl::StatusOr<int64_t> excess_bytes = pipeline->ExcessBytes(cut);
    if (!excess_bytes.ok() || *excess_bytes > 0) return std::nullopt;
    const absl::StatusOr<int64_t> step_ns = pipeline->StepNs(cut);
    if (!step_ns.ok()) return std::nullopt;
    return *step_ns;
  }

  const PlannerRequest& request_;
  CandidateSpace& space_;
  FoundPlans& plans_;
  const Candidate& candidate_;
  const Placement placement_;
  const CutEvaluator pipeline_;  // with BW
  const CutEvaluator split_;     // with B and W apart
  bool has_all_variants_ = true;
};

}  // namespace

absl::StatusOr<EveryOrder> SearchEveryOrder(const PlannerRequest& request, CandidateSpace& space,
                                            FoundPlans& plans) {
  EveryOrder result = {.bound_ns = std::numeric_limits<double>::infinity()};
  int64_t nodes_left = kMaxNodes;
  std::set<ShapeAndPlacement> known;
  for (const Candidate& candidate : space.candidates()) {
    // The candidates that follow have no lower bound.
    if (plans.IsHopeless(candidate.lower_bound_ns)) break;
    const bool is_tiny =
        schedule::IsTiny(candidate.ranks, candidate.micro_batches_of_each(), candidate.chunks) &&
        CountCuts(request.profile.num_layers(), candidate.num_stages()) <= kMaxEnumeratedCuts;
    if (!is_tiny || plans.budget().IsReached()) {
      result.bound_ns = std::min(result.bound_ns, candidate.lower_bound_ns);
      continue;
    }
    // Only the cuts of one order of a graph are.
    if (!request.profile.is_chain()) {
      result.bound_ns = std::min(result.bound_ns, candidate.lower_bound_ns);
    }
    ASSIGN_OR_RETURN(const schedule::Generator* const generator,
                     schedule::FindGenerator(candidate.schedule));
    const Placement placement = generator->placement;
    if (!known
             .insert({candidate.replicas(), candidate.micro_batches, candidate.chunks,
                      candidate.order, placement})
             .second) {
      continue;
    }
    absl::StatusOr<CutEvaluator> fused =
        space.EvaluatorOf(candidate, InTurn(candidate, placement, false));
    if (IsCutShort(fused.status())) {  // before the order of a graph's layers was known
      result.bound_ns = std::min(result.bound_ns, candidate.lower_bound_ns);
      continue;
    }
    RETURN_IF_ERROR(fused.status());
    ASSIGN_OR_RETURN(CutEvaluator split,
                     space.EvaluatorOf(candidate, InTurn(candidate, placement, true)));
    RETURN_IF_ERROR(ShapeOrders(request, space, plans, candidate, placement, *std::move(fused),
                                std::move(split))
                        .Search(nodes_left, result));
  }
  return result;
}

}  // namespace stagecoach::partition
