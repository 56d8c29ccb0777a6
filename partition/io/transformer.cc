#include "partition/io/transformer.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/cost/profile.h"
#include "partition/io/transformer_keys.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

// Bounds what one layer takes, so that no sum of sizes overflows.
absl::Status CheckTotals(const Transformer& t, int64_t rows) {
  constexpr double kMost = 16.0 * static_cast<double>(schedule::kMaxSizeBytes);
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double tokens = real(t.sequence) * real(rows);
  const double pairs = tokens * real(t.experts_per_token) * t.capacity_factor;
  const double layer = tokens * 20 * 8 * real(t.hidden) + tokens * 8 * 8 * real(t.query_width()) +
                       pairs * 8 * (4 * real(t.hidden) + 8 * real(t.mlp_width())) +
                       tokens * 8 * real(t.experts) +
                       tokens * 17 * real(t.sequence) * real(t.heads);
  const double most = std::max(layer, tokens * 4 * real(t.vocabulary));
  if (most > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_rows: with ", rows, " rows a layer keeps up to ", most,
                     " bytes, expected a smaller product with sequence, hidden or vocabulary"));
  }
  const double parameters =
      real(std::max<int64_t>(t.experts, 1)) * 3 * real(t.hidden) * real(t.mlp_width());
  if (parameters * 64 <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(t.experts > 0 ? "experts" : "mlp_hidden", ": a layer has up to ", parameters,
                   " parameters, expected a smaller product with hidden"));
}

absl::Status CheckHeads(const Transformer& t) {
  if (t.head_size == 0 && t.hidden % t.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads: must divide hidden, ", t.hidden, ", found ", t.heads));
  }
  if (t.heads % t.key_heads() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_heads: must divide heads, ", t.heads, ", found ", t.kv_heads));
  }
  if (t.key_heads() < t.heads && t.key_heads() % t.tensor_parallel != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor_parallel: must divide kv_heads, ",
                                                   t.kv_heads, ", found ", t.tensor_parallel));
  }
  return absl::OkStatus();
}

absl::Status CheckExperts(const Transformer& t) {
  if (t.experts == 0) {
    for (const auto& [name, value] :
         {std::pair<const char*, double>{"experts_per_token",
                                         static_cast<double>(t.experts_per_token)},
          {"expert_parallel", static_cast<double>(t.expert_parallel)},
          {"capacity_factor", t.capacity_factor}}) {
      if (value == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": is ", value, ", but the model has no experts"));
    }
    return absl::OkStatus();
  }
  if (t.experts_per_token > t.experts) {
    return absl::InvalidArgumentError(absl::StrCat("experts_per_token: must be at most experts, ",
                                                   t.experts, ", found ", t.experts_per_token));
  }
  if (t.experts % t.expert_parallel != 0) {
    return absl::InvalidArgumentError(absl::StrCat("expert_parallel: must divide experts, ",
                                                   t.experts, ", found ", t.expert_parallel));
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const Transformer& t) {
  const size_t sizes = t.micro_batch_rows.size();
  if (sizes < 1 || sizes > kMaxSizes) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_rows: must be from 1 to ", kMaxSizes, " sizes, found ", sizes));
  }
  if ((t.layers + 2) * static_cast<int64_t>(sizes) > kMaxLayerCosts) {
    return absl::InvalidArgumentError(absl::StrCat("layers: ", t.layers, " of them and 2 more for ",
                                                   sizes, " sizes, expected a product of at most ",
                                                   kMaxLayerCosts));
  }
  int64_t previous = 0;
  for (const int64_t rows : t.micro_batch_rows) {
    if (rows <= previous || rows > kMaxMicroBatchRows) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro_batch_rows: must ascend from at least 1 to at most ",
                       kMaxMicroBatchRows, ", found ", rows));
    }
    RETURN_IF_ERROR(CheckTotals(t, rows));
    previous = rows;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTransformer(const Transformer& t) {
  for (const IntegerKey& key : kIntegerKeys) {
    const int64_t value = t.*key.member;
    if (value >= key.min && value <= key.max) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(key.names[0], ": must be from ", key.min, " to ", key.max, ", found ", value));
  }
  for (const RealKey& key : kRealKeys) {
    const double value = t.*key.member;
    if (value >= key.min && value <= key.max) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(key.name, ": must be from ", key.min, " to ", key.max, ", found ", value));
  }
  RETURN_IF_ERROR(CheckHeads(t));
  RETURN_IF_ERROR(CheckExperts(t));
  if (t.positions == Positions::kLearned && t.context > 0 && t.sequence > t.context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence: must be at most the learned positions, ", t.context, ", found ", t.sequence));
  }
  return CheckRows(t);
}

int64_t ParametersOfNorm(const Transformer& t) {
  return (t.norm == Norm::kLayerNorm ? 2 : 1) * t.hidden;
}

LayerParameters ParametersOfLayer(const Transformer& t) {
  const int64_t width = t.mlp_width(), inputs = t.mlp_inputs();
  int64_t perceptron = (inputs + 1) * t.hidden * width;
  if (t.bias == Bias::kAll) perceptron += inputs * width + t.hidden;
  LayerParameters parameters;
  parameters.others = t.hidden * t.qkv_width() + t.query_width() * t.hidden +
                      (t.post_norms ? 4 : 2) * ParametersOfNorm(t) + t.experts * t.hidden;
  if (t.qk_norm) parameters.others += 2 * t.size_of_head();
  if (t.bias != Bias::kNone) parameters.others += t.qkv_width();
  if (t.bias == Bias::kAll || t.bias == Bias::kAttention) parameters.others += t.hidden;
  if (t.experts > 0) {
    parameters.experts = t.experts * perceptron;
  } else {
    parameters.others += perceptron;
  }
  return parameters;
}

int64_t ParametersOfEmbedding(const Transformer& t) {
  const int64_t positions = t.context > 0 ? t.context : t.sequence;
  return (t.vocabulary + (t.positions == Positions::kLearned ? positions : 0)) * t.hidden;
}

int64_t ParametersOfHead(const Transformer& t) {
  return t.tie_word_embeddings ? 0 : t.vocabulary * t.hidden;
}

int64_t Parameters(const Transformer& t) {
  const LayerParameters layer = ParametersOfLayer(t);
  return ParametersOfEmbedding(t) + t.layers * (layer.experts + layer.others) +
         ParametersOfNorm(t) + ParametersOfHead(t);
}

int64_t ActiveParameters(const Transformer& t) {
  if (t.experts == 0) return Parameters(t);
  return Parameters(t) -
         t.layers * (ParametersOfLayer(t).experts / t.experts) * (t.experts - t.experts_per_token);
}

}  // namespace stagecoach::partition
