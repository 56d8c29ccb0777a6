#include "kernels/cuda/products/algorithm.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {
namespace {

// Calls `visit` with the name and the place of each attribute. This is the only list of a choice's
// attributes.
template <typename AnyAlgorithm, typename Visit>
void ForEachField(AnyAlgorithm& algorithm, Visit visit) {
  visit("id", algorithm.id);
  visit("tile", algorithm.tile);
  visit("stages", algorithm.stages);
  visit("split_k", algorithm.split_k);
  visit("reduction", algorithm.reduction);
  visit("swizzle", algorithm.swizzle);
  visit("custom_option", algorithm.custom_option);
  visit("inner_shape", algorithm.inner_shape);
  visit("cluster_shape", algorithm.cluster_shape);
  visit("apart", algorithm.apart);
}

}  // namespace

std::string Algorithm::ToString() const {
  if (apart != 0) return "apart";
  std::string text;
  ForEachField(*this, [&](const char* name, auto value) {
    if (std::strcmp(name, "apart") == 0) return;
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", value);
  });
  return text;
}

Choice Algorithm::ToChoice() const {
  Choice choice;
  ForEachField(*this, [&](const char* name, auto value) { choice[name] = value; });
  return choice;
}

absl::StatusOr<Algorithm> Algorithm::FromChoice(const Choice& choice) {
  Algorithm algorithm;
  Choice others = choice;
  absl::Status status;
  ForEachField(algorithm, [&]<typename Integer>(const char* name, Integer& field) {
    const auto number = others.extract(name);
    if (number.empty()) {
      status.Update(absl::DataLossError(absl::StrCat(name, " is missing")));
    } else if (!std::in_range<Integer>(number.mapped())) {
      status.Update(absl::DataLossError(absl::StrCat(name, " is ", number.mapped())));
    } else {
      field = static_cast<Integer>(number.mapped());
    }
  });
  if (!others.empty()) {
    status.Update(absl::DataLossError(absl::StrCat("unknown: ", others.begin()->first)));
  }
  if (!status.ok()) return status;
  return algorithm;
}

}  // namespace stagecoach::kernels
