#include "engine/runtime/trained_parameters.h"

#include <algorithm>
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

// Hashes each piece of a parameter (ModelParameter::first_piece) where it is. Index: replica;
// piece. Those of other processes stay empty.
using Digests = std::vector<std::vector<std::string>>;
absl::Status HashOwn(RankGroup& group, Executors executors, Digests& digests) {
  return group.ForEachLocalDevice([&](int device) -> absl::Status {
    std::vector<std::string>& own = digests[static_cast<size_t>(group.mesh().replica_of(device))];
    for (const auto& stage : executors[static_cast<size_t>(device)]->stages()) {
      for (const ModelParameter& parameter : stage->parameters()) {
        if (!stage->Counts(parameter)) continue;
        ASSIGN_OR_RETURN(const std::vector<float> values, stage->CopyParameter(parameter.id));
        const int pieces = stage->PiecesOf(parameter);
        const size_t count = values.size() / static_cast<size_t>(pieces);
        for (int i = 0; i < pieces; ++i) {
          const auto piece =
              absl::MakeConstSpan(values).subspan(static_cast<size_t>(i) * count, count);
          own[static_cast<size_t>(stage->FirstPieceOf(parameter) + i)] =
              base::HashOf(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(piece.data()),
                                               piece.size() * sizeof(float)));
        }
      }
    }
    return absl::OkStatus();
  });
}

// Returns those of a parameter's pieces, of a replica.
absl::Span<const std::string> DigestsOf(const ModelParameter& parameter,
                                        absl::Span<const std::string> digests) {
  return digests.subspan(static_cast<size_t>(parameter.first_piece),
                         static_cast<size_t>(parameter.pieces()));
}

absl::Status CheckReplicasAgree(const Digests& digests, const ParameterTable& parameters) {
  for (size_t replica = 1; replica < digests.size(); ++replica) {
    for (const ModelParameter& parameter : parameters.all()) {
      if (DigestsOf(parameter, digests[replica]) == DigestsOf(parameter, digests.front())) continue;
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
    if (DigestsOf(parameter, digests) == DigestsOf(parameters[original], digests)) continue;
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

std::vector<float> InOrderOfShape(const ModelParameter& parameter, std::vector<float> stored) {
  if (parameter.pieces() == 1) return stored;
  std::vector<float> values(stored.size());
  ForEachRun(parameter.shape, *parameter.blocks, 0, std::ssize(stored), [&](const ElementRun& run) {
    std::copy_n(stored.begin() + run.stored, run.count, values.begin() + run.whole);
  });
  return values;
}

}  // namespace

absl::StatusOr<std::string> HashParameters(RankGroup& group, Executors executors,
                                           const ParameterTable& parameters) {
  const auto replicas = static_cast<size_t>(group.mesh().num_replicas());
  const auto count = static_cast<size_t>(parameters.pieces());
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
    if (parameter.is_copy()) continue;
    for (const std::string& digest : DigestsOf(parameter, digests.front())) originals += digest;
  }
  return base::HashOf(originals);
}

absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const ModelParameter& parameter, Rank rank) {
  const Mesh& mesh = group.mesh();
  const int parts = parameter.pieces() > 1 ? mesh.num_parts() : 1;
  std::vector<ValueShare> shares;
  absl::StatusOr<std::vector<float>> own = std::vector<float>();
  for (int part = 0; part < parts && own.ok(); ++part) {
    const int owner = mesh.device_of(rank, 0, part);
    shares.push_back({.owner = owner, .count = parameter.shape.elements() / parts});
    const std::unique_ptr<Executor>& executor = executors[static_cast<size_t>(owner)];
    if (executor == nullptr) continue;
    absl::StatusOr<std::vector<float>> held;
    group.device(owner).stream().Run([&] { held = CopyFrom(*executor, parameter.id); });
    if (held.ok()) {
      own->insert(own->end(), held->begin(), held->end());
    } else {
      own = held.status();
    }
  }
  // The text tells the others which parameter this process asks for.
  const absl::StatusOr<std::string> asked =
      own.ok() ? absl::StatusOr<std::string>(parameter.name) : own.status();
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(asked));
  if (all.size() == 1) return InOrderOfShape(parameter, *std::move(own));
  for (const std::string& name : all) {
    if (name != parameter.name) return NotTheSameModel();
  }
  ASSIGN_OR_RETURN(std::vector<float> stored, GatherValues(group, *own, shares));
  return InOrderOfShape(parameter, std::move(stored));
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
