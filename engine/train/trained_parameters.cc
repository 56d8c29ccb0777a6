#include "engine/train/trained_parameters.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

// Of a parameter that is passed on in parts.
constexpr int64_t kPartValues = Rendezvous::kMaxValueBytes / static_cast<int64_t>(sizeof(float));

template <typename T>
std::string HexDigest(absl::Span<const T> values) {
  base::Hasher hasher;
  hasher.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                    values.size() * sizeof(T)));
  return hasher.HexDigest();
}

// Each tensor is hashed where it is. Those of other processes stay empty.
absl::Status HashOwn(RankGroup& group, Executors executors, const std::vector<int>& first_parameter,
                     std::vector<std::string>& digests) {
  return group.OnEach([&](int rank) -> absl::Status {
    for (const auto& stage : executors[static_cast<size_t>(rank)]->stages()) {
      int index = first_parameter[static_cast<size_t>(stage->options().id.value())];
      for (int i = 0; i < stage->num_parameters(); ++i, ++index) {
        ASSIGN_OR_RETURN(const std::vector<float> values, stage->CopyParameter(i));
        digests[static_cast<size_t>(index)] = HexDigest(absl::MakeConstSpan(values));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status NotTheSameModel() {
  return absl::FailedPreconditionError("the processes do not train the same model");
}

// A parameter that this process has, and the names of all that it has.
struct Found {
  std::optional<std::vector<float>> values;
  std::vector<std::string> names;
};

absl::StatusOr<Found> Find(RankGroup& group, Executors executors, const std::string& name) {
  Found found;
  for (const int rank : group.local_ranks()) {
    for (const auto& stage : executors[static_cast<size_t>(rank)]->stages()) {
      for (int i = 0; i < stage->num_parameters(); ++i) {
        found.names.push_back(stage->parameter_name(i));
        if (found.names.back() != name) continue;
        absl::StatusOr<std::vector<float>> values;
        group.device(rank).stream().Run([&] { values = stage->CopyParameter(i); });
        ASSIGN_OR_RETURN(found.values, std::move(values));
      }
    }
  }
  return found;
}

// What the others are told: how many values there are, and the names.
absl::StatusOr<std::string> Announce(const absl::StatusOr<Found>& found) {
  RETURN_IF_ERROR(found.status());
  const size_t values = found->values.has_value() ? found->values->size() : 0;
  return absl::StrCat(values, "\n", absl::StrJoin(found->names, "\n"));
}

// The values that the process of rank `owner` has, `own`, if that is this one.
absl::StatusOr<std::vector<float>> PassOn(RankGroup& group, const std::vector<float>* own,
                                          size_t owner, int64_t count) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(values.size()) < count) {
    const auto done = static_cast<int64_t>(values.size());
    const auto part = static_cast<size_t>(std::min(kPartValues, count - done));
    std::string bytes;
    if (own != nullptr) {
      bytes.assign(reinterpret_cast<const char*>(own->data() + done), part * sizeof(float));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(bytes));
    if (all[owner].size() != part * sizeof(float)) return NotTheSameModel();
    values.resize(values.size() + part);
    std::memcpy(values.data() + done, all[owner].data(), part * sizeof(float));
  }
  return values;
}

}  // namespace

absl::StatusOr<std::string> HashParameters(RankGroup& group, Executors executors,
                                           const std::vector<int>& first_parameter, int total) {
  std::vector<std::string> digests(static_cast<size_t>(total));
  const absl::Status hashed = HashOwn(group, executors, first_parameter, digests);
  const absl::StatusOr<std::string> own =
      hashed.ok() ? absl::StatusOr<std::string>(absl::StrJoin(digests, ",")) : hashed;
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(own));
  for (const std::string& text : all) {
    const std::vector<std::string> theirs = absl::StrSplit(text, ',');
    if (total > 0 && theirs.size() != digests.size()) return NotTheSameModel();
    for (size_t i = 0; i < digests.size(); ++i) {
      if (digests[i].empty()) digests[i] = theirs[i];
    }
  }
  const std::string text = absl::StrJoin(digests, "");
  return HexDigest(absl::MakeConstSpan(text.data(), text.size()));
}

absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const std::string& name) {
  const absl::StatusOr<Found> found = Find(group, executors, name);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(Announce(found)));
  const std::vector<float>* const own = found->values.has_value() ? &*found->values : nullptr;
  if (all.size() == 1 && own != nullptr) return *own;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<std::string> lines = absl::StrSplit(all[rank], '\n', absl::SkipEmpty());
    int64_t count = 0;
    if (lines.empty() || !absl::SimpleAtoi(lines.front(), &count)) return NotTheSameModel();
    if (count > 0) return PassOn(group, own, rank, count);
    names.insert(names.end(), lines.begin() + 1, lines.end());
  }
  return absl::NotFoundError(
      absl::StrCat("no parameter \"", name, "\"; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace stagecoach::engine
