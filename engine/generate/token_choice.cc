#include "engine/generate/token_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/random.h"

namespace stagecoach::engine {
namespace {

// A stream of base::RandomStream: bit 63 and this mark set it apart from all others
// (engine/data/random_streams.h).
constexpr uint64_t kTokenStream = uint64_t{0x7E47} << 48 | uint64_t{1} << 63;

// Returns a draw that is uniform over the multiples of 2^-53 in [0, 1).
double UniformAt(uint64_t seed, int64_t position) {
  constexpr uint64_t kSteps = uint64_t{1} << 53;
  const uint64_t step =
      base::RandomStream(seed, kTokenStream).Below(static_cast<uint64_t>(position), kSteps);
  return static_cast<double>(step) / static_cast<double>(kSteps);
}

// Tests the exponents, so that a compiler can vectorize the loop.
bool AreFinite(absl::Span<const float> values) {
  constexpr uint32_t kExponent = 0x7F800000;
  bool are_finite = true;
  for (const float value : values) {
    are_finite &= (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
  }
  return are_finite;
}

// Returns the ids to choose from before top_p, those with the largest logits first.
std::vector<int32_t> LargestFirst(absl::Span<const float> logits, int64_t top_k) {
  const auto comes_first = [&](int32_t a, int32_t b) {
    const float of_a = logits[static_cast<size_t>(a)], of_b = logits[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  };
  const int64_t count = top_k == 0 ? std::ssize(logits) : std::min(top_k, std::ssize(logits));
  // A heap of the first so far, with the last of them in front. Few of the others come before it,
  // and none with an equal logit.
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::make_heap(ids.begin(), ids.end(), comes_first);
  for (auto id = static_cast<int32_t>(count); id < std::ssize(logits); ++id) {
    if (logits[static_cast<size_t>(id)] <= logits[static_cast<size_t>(ids.front())]) continue;
    std::pop_heap(ids.begin(), ids.end(), comes_first);
    ids.back() = id;
    std::push_heap(ids.begin(), ids.end(), comes_first);
  }
  std::sort_heap(ids.begin(), ids.end(), comes_first);
  return ids;
}

}  // namespace

absl::StatusOr<int32_t> ChooseToken(absl::Span<const float> logits, const TokenChoice& choice,
                                    int64_t position) {
  STAGECOACH_CHECK(!logits.empty(), "there is no id to choose");
  const bool are_finite = AreFinite(logits);
  for (size_t id = 0; !are_finite && id < logits.size(); ++id) {
    if (std::isfinite(logits[id])) continue;
    return base::DataError(absl::StrCat("at position ", position, " the model gives ", logits[id],
                                        " for the id ", id, ": its parameters are of no use"));
  }
  if (choice.temperature == 0.0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const std::vector<int32_t> ids = LargestFirst(logits, choice.top_k);
  const double largest = logits[static_cast<size_t>(ids.front())];
  std::vector<double> sums;  // of the weights up to each
  double sum = 0.0;
  for (const int32_t id : ids) {
    sum += std::exp((logits[static_cast<size_t>(id)] - largest) / choice.temperature);
    sums.push_back(sum);
  }
  // The first whose sum is large enough is the last to choose from.
  const auto last =
      std::min(std::lower_bound(sums.begin(), sums.end(), choice.top_p * sum), sums.end() - 1);
  const double drawn = UniformAt(choice.seed, position) * *last;
  return ids[static_cast<size_t>(std::min(std::upper_bound(sums.begin(), last, drawn), last) -
                                 sums.begin())];
}

}  // namespace stagecoach::engine
