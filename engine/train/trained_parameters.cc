#include "engine/train/trained_parameters.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

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
absl::Status HashOwn(RankGroup& group, Executors executors, std::vector<std::string>& digests) {
  return group.OnEach([&](int rank) -> absl::Status {
    for (const auto& stage : executors[static_cast<size_t>(rank)]->stages()) {
      for (const ModelParameter& parameter : stage->parameters()) {
        ASSIGN_OR_RETURN(const std::vector<float> values, stage->CopyParameter(parameter.id));
        digests[static_cast<size_t>(parameter.id.value())] = HexDigest(absl::MakeConstSpan(values));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status NotTheSameModel() {
  return absl::FailedPreconditionError("the processes do not train the same model");
}

// From an executor that has the parameter. A job of its device's stream.
absl::StatusOr<std::vector<float>> CopyFrom(const Executor& executor, ParameterId id) {
  for (const std::unique_ptr<Stage>& stage : executor.stages()) {
    if (stage->has(id)) return stage->CopyParameter(id);
  }
  return absl::InternalError("the parameter is not where the plan has it");
}

// The `count` values that the process of rank `owner` has, `own`, if that is this one.
absl::StatusOr<std::vector<float>> PassOn(RankGroup& group, const std::vector<float>& own,
                                          size_t owner, int64_t count) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(values.size()) < count) {
    const auto done = static_cast<int64_t>(values.size());
    const auto part = static_cast<size_t>(std::min(kPartValues, count - done));
    std::string bytes;
    if (!own.empty()) {
      bytes.assign(reinterpret_cast<const char*>(own.data() + done), part * sizeof(float));
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
                                           const ParameterTable& parameters) {
  std::vector<std::string> digests(static_cast<size_t>(parameters.size()));
  const absl::Status hashed = HashOwn(group, executors, digests);
  const absl::StatusOr<std::string> own =
      hashed.ok() ? absl::StatusOr<std::string>(absl::StrJoin(digests, ",")) : hashed;
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(own));
  for (const std::string& text : all) {
    const std::vector<std::string> theirs = absl::StrSplit(text, ',');
    if (!digests.empty() && theirs.size() != digests.size()) return NotTheSameModel();
    for (size_t i = 0; i < digests.size(); ++i) {
      if (digests[i].empty()) digests[i] = theirs[i];
    }
  }
  const std::string text = absl::StrJoin(digests, "");
  return HexDigest(absl::MakeConstSpan(text.data(), text.size()));
}

absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const ModelParameter& parameter,
                                                 schedule::Rank owner) {
  const auto rank = static_cast<size_t>(owner.value());
  absl::StatusOr<std::vector<float>> own = std::vector<float>();
  if (executors[rank] != nullptr) {
    group.device(owner.value()).stream().Run([&] {
      own = CopyFrom(*executors[rank], parameter.id);
    });
  }
  // The text tells the others which parameter this process asks for.
  const absl::StatusOr<std::string> asked =
      own.ok() ? absl::StatusOr<std::string>(parameter.name) : own.status();
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(asked));
  if (all.size() == 1) return own;
  for (const std::string& name : all) {
    if (name != parameter.name) return NotTheSameModel();
  }
  return PassOn(group, *own, rank, parameter.shape.elements());
}

}  // namespace stagecoach::engine
