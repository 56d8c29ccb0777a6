#include "engine/runtime/nonfinite_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;

template <typename T, typename IsFinite>
bool AllOf(const std::byte* data, int64_t elements, IsFinite is_finite) {
  const T* const values = reinterpret_cast<const T*>(data);
  return std::all_of(values, values + elements, is_finite);
}

bool AllFinite(const std::byte* data, DType type, int64_t elements) {
  switch (type) {
    case DType::kFloat32:
      return AllOf<float>(data, elements, [](float value) { return std::isfinite(value); });
    case DType::kFloat64:
      return AllOf<double>(data, elements, [](double value) { return std::isfinite(value); });
    case DType::kBfloat16: {
      constexpr uint16_t kExponent = 0x7F80;
      return AllOf<uint16_t>(data, elements,
                             [](uint16_t bits) { return (bits & kExponent) != kExponent; });
    }
    case DType::kFloat16:  // in files alone
    case DType::kInt8:
    case DType::kInt32:
    case DType::kUint8:
      return true;
  }
  return true;
}

}  // namespace

std::string ToText(const std::optional<NonFinite>& found) {
  if (!found.has_value()) return "";
  return absl::StrCat(found->micro_batch, " ", static_cast<int>(found->pass), " ", found->order);
}

absl::StatusOr<std::optional<NonFinite>> ParseNonFinite(absl::string_view text) {
  if (text.empty()) return std::optional<NonFinite>();
  NonFinite found;
  int pass = 0;
  const std::vector<absl::string_view> numbers = absl::StrSplit(text, ' ');
  const bool is_one = numbers.size() == 3 && absl::SimpleAtoi(numbers[0], &found.micro_batch) &&
                      absl::SimpleAtoi(numbers[1], &pass) && pass >= 0 &&
                      pass <= static_cast<int>(Pass::kBackward) &&
                      absl::SimpleAtoi(numbers[2], &found.order);
  if (!is_one) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not where a number is that is not finite"));
  }
  found.pass = static_cast<Pass>(pass);
  return std::optional<NonFinite>(found);
}

absl::Status NonFiniteSearch::OnTensor(Pass pass, int layer,
                                       absl::Span<const kernels::Tensor> made) {
  const NonFinite here = {micro_batch_, pass, pass == Pass::kBackward ? -layer : layer};
  if (first_.has_value() && *first_ <= here) return absl::OkStatus();
  for (const kernels::Tensor& tensor : made) {
    if (tensor.empty()) continue;
    const auto* data = static_cast<const std::byte*>(tensor.data);
    if (read_) {
      ASSIGN_OR_RETURN(data, read_(tensor));
    }
    if (!AllFinite(data, tensor.dtype, tensor.elements())) first_ = here;
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
