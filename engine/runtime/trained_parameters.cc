#include "engine/runtime/trained_parameters.h"

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "engine/runtime/gathered_values.h"

namespace stagecoach::engine {
namespace {

// Hashes each tensor where it is. Index: replica; parameter. Those of other processes stay empty.
using Digests = std::vector<std::vector<std::string>>;
absl::Status HashOwn(RankGroup& group, Executors executors, Digests& digests) {
  return group.ForEachLocalDevice([&](int device) -> absl::Status {
    std::vector<std::string>& own = digests[static_cast<size_t>(group.mesh().replica_of(device))];
    for (const auto& stage : executors[static_cast<size_t>(device)]->stages()) {
      for (const ModelParameter& parameter : stage->parameters()) {
        ASSIGN_OR_RETURN(const std::vector<float> values, stage->CopyParameter(parameter.id));
        own[static_cast<size_t>(parameter.id.value())] = base::HashOf(absl::MakeConstSpan(
            reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status CheckReplicasAgree(const Digests& digests, const ParameterTable& parameters) {
  for (size_t replica = 1; replica < digests.size(); ++replica) {
    for (const ModelParameter& parameter : parameters.all()) {
      const auto id = static_cast<size_t>(parameter.id.value());
      if (digests[replica][id] == digests.front()[id]) continue;
      return absl::DataLossError(absl::StrCat("replica ", replica,
                                              " has other values than replica 0 of the parameter ",
                                              parameter.name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCopiesAgree(absl::Span<const std::string> digests,
                              const ParameterTable& parameters) {
  for (const ModelParameter& parameter : parameters.all()) {
    const ParameterId original = parameter.original();
    if (digests[static_cast<size_t>(parameter.id.value())] ==
        digests[static_cast<size_t>(original.value())]) {
      continue;
    }
    return absl::DataLossError(absl::StrCat("the parameters ", parameters[original].name, " and ",
                                            parameter.name,
                                            " are tied, but have different values"));
  }
  return absl::OkStatus();
}

absl::Status NotTheSameModel() {
  return absl::FailedPreconditionError("the processes do not train the same model");
}

// Copies from an executor that has the parameter. A job of its device's stream.
absl::StatusOr<std::vector<float>> CopyFrom(const Executor& executor, ParameterId id) {
  for (const std::unique_ptr<Stage>& stage : executor.stages()) {
    if (stage->has(id)) return stage->CopyParameter(id);
  }
  return absl::InternalError("the parameter is not where the plan has it");
}

}  // namespace

absl::StatusOr<std::string> HashParameters(RankGroup& group, Executors executors,
                                           const ParameterTable& parameters) {
  const auto replicas = static_cast<size_t>(group.mesh().num_replicas());
  const auto count = static_cast<size_t>(parameters.size());
  Digests digests(replicas, std::vector<std::string>(count));
  const absl::Status hashed = HashOwn(group, executors, digests);
  const absl::StatusOr<std::string> own =
      hashed.ok() ? absl::StatusOr<std::string>(absl::StrJoin(
                        digests, ";",
                        [&](std::string* text, const std::vector<std::string>& of_replica) {
                          text->append(absl::StrJoin(of_replica, ","));
                        }))
                  : hashed;
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(own));
  for (const std::string& text : all) {
    const std::vector<std::string> of_replicas = absl::StrSplit(text, ';');
    if (of_replicas.size() != replicas) return NotTheSameModel();
    for (size_t replica = 0; replica < replicas; ++replica) {
      const std::vector<std::string> theirs = absl::StrSplit(of_replicas[replica], ',');
      if (count > 0 && theirs.size() != count) return NotTheSameModel();
      for (size_t i = 0; i < count; ++i) {
        if (digests[replica][i].empty()) digests[replica][i] = theirs[i];
      }
    }
  }
  RETURN_IF_ERROR(CheckReplicasAgree(digests, parameters));
  RETURN_IF_ERROR(CheckCopiesAgree(digests.front(), parameters));
  std::string originals;
  for (const ModelParameter& parameter : parameters.all()) {
    if (!parameter.is_copy())
      originals += digests.front()[static_cast<size_t>(parameter.id.value())];
  }
  return base::HashOf(originals);
}

absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const ModelParameter& parameter, int owner) {
  const std::unique_ptr<Executor>& executor = executors[static_cast<size_t>(owner)];
  absl::StatusOr<std::vector<float>> own = std::vector<float>();
  if (executor != nullptr) {
    group.device(owner).stream().Run([&] { own = CopyFrom(*executor, parameter.id); });
  }
  // The text tells the others which parameter this process asks for.
  const absl::StatusOr<std::string> asked =
      own.ok() ? absl::StatusOr<std::string>(parameter.name) : own.status();
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(asked));
  if (all.size() == 1) return own;
  for (const std::string& name : all) {
    if (name != parameter.name) return NotTheSameModel();
  }
  return GatherValues(group, *own, {{.owner = owner, .count = parameter.shape.elements()}});
}

absl::Status SetParameter(RankGroup& group, Executors executors, const ModelParameter& parameter,
                          absl::Span<const float> values) {
  if (std::ssize(values) != parameter.shape.elements()) {
    return absl::InvalidArgumentError(absl::StrCat(
        parameter.name, " has ", parameter.shape.elements(), " values, not ", values.size()));
  }
  return group.ForEachLocalDevice([&](int device) -> absl::Status {
    for (const std::unique_ptr<Stage>& stage : executors[static_cast<size_t>(device)]->stages()) {
      for (const ParameterId id : {parameter.id, parameter.tied_to}) {
        if (id.valid() && stage->has(id)) RETURN_IF_ERROR(stage->SetParameter(id, values));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace stagecoach::engine
