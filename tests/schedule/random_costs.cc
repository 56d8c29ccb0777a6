#include "tests/schedule/random_costs.h"

#include <cstddef>

namespace stagecoach::schedule {

int64_t DrawBelow(int max, std::mt19937& random) {
  return static_cast<int64_t>(random() % static_cast<unsigned>(max));
}

Costs RandomCosts(const Schedule& schedule, int max_latency_ns, std::mt19937& random) {
  const auto draw = [&](int max) { return DrawBelow(max, random); };
  Costs costs;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    costs.stages.push_back({.forward_ns = draw(1000),
                            .backward_input_ns = draw(1000),
                            .backward_weight_ns = draw(1000),
                            .backward_ns = draw(2000),
                            .reduce_ns = draw(500),
                            .step_ns = draw(500),
                            .output_bytes = draw(4000),
                            .input_gradient_bytes = draw(4000)});
  }
  const size_t ranks = schedule.actions.size();
  for (size_t i = 0; i < ranks * ranks; ++i) {
    costs.links.push_back(
        {.latency_ns = draw(max_latency_ns), .bytes_per_second = 1e9 * (1.0 + draw(50))});
  }
  return costs;
}

}  // namespace stagecoach::schedule
