#include "engine/runtime/gathered_values.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

// Values per text of the rendezvous.
constexpr int64_t kPartValues = Rendezvous::kMaxValueBytes / static_cast<int64_t>(sizeof(float));

// Returns the number of `count` values in the part that starts at `begin`.
int64_t PartOf(int64_t count, int64_t begin) {
  return std::clamp(count - begin, int64_t{0}, kPartValues);
}

}  // namespace

absl::StatusOr<std::vector<float>> GatherValues(RankGroup& group, absl::Span<const float> own,
                                                absl::Span<const ValueShare> shares) {
  std::vector<int64_t> starts;  // of the shares in `values`
  int64_t total = 0;
  int64_t largest = 0;
  for (const ValueShare& share : shares) {
    starts.push_back(total);
    total += share.count;
    largest = std::max(largest, share.count);
  }
  std::vector<float> values(static_cast<size_t>(total));
  for (int64_t begin = 0; begin < largest; begin += kPartValues) {
    const int64_t part = PartOf(static_cast<int64_t>(own.size()), begin);
    std::string bytes;
    if (part > 0) {
      bytes.assign(reinterpret_cast<const char*>(own.data() + begin),
                   static_cast<size_t>(part) * sizeof(float));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(bytes));
    for (size_t i = 0; i < shares.size(); ++i) {
      const std::string& theirs = all[static_cast<size_t>(shares[i].owner)];
      const auto expected = static_cast<size_t>(PartOf(shares[i].count, begin)) * sizeof(float);
      if (theirs.size() != expected) {
        return absl::FailedPreconditionError(absl::StrCat("rank ", shares[i].owner, " passes on ",
                                                          theirs.size(), " bytes, not ", expected,
                                                          ": all processes must ask for the same"));
      }
      if (expected > 0) std::memcpy(values.data() + starts[i] + begin, theirs.data(), expected);
    }
  }
  return values;
}

}  // namespace stagecoach::engine
