#include "tools/stagecoach/terminal/tensor_difference.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "partition/plan/plan_evaluation.h"

namespace stagecoach::tools {

std::string DescribeTensors(const engine::CheckpointDifference& difference) {
  using partition::Counted;
  if (difference.compared == 0) return "no tensor is in both\n";
  if (difference.tensors.empty()) {
    return absl::StrFormat("%s the same bits\n",
                           difference.compared == 1
                               ? "1 tensor has"
                               : absl::StrCat(difference.compared, " tensors have"));
  }
  const engine::CheckpointDifference::Tensor& first = difference.tensors.front();
  return absl::StrFormat(
      "%d of %s differ; the first is \"%s\" (%s):\n"
      "  %s, from [%s] on: %.9g and %.9g\n",
      difference.tensors.size(), Counted(difference.compared, "tensor"), first.name, first.file,
      first.elements == 1 ? "1 element differs" : absl::StrCat(first.elements, " elements differ"),
      absl::StrJoin(first.index, ", "), first.left, first.right);
}

nlohmann::ordered_json DifferenceToJson(const engine::CheckpointDifference& difference) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const auto& tensor : difference.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"file", tensor.file},
                       {"index", tensor.index},
                       {"left", tensor.left},
                       {"right", tensor.right},
                       {"elements", tensor.elements}});
  }
  return {{"compared", difference.compared},
          {"only_left", difference.only_left},
          {"only_right", difference.only_right},
          {"tensors", std::move(tensors)}};
}

}  // namespace stagecoach::tools
