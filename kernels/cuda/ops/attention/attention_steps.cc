#include "kernels/cuda/ops/attention/attention_steps.h"

#include <cstdint>
#include <span>
#include <utility>

#include "kernels/cuda/ops/attention/attention_shape.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {
namespace {

// Returns the area of the heads of every position.
Area AreaOf(const HeadsOf<void*>& heads, int64_t count, const AttentionArguments& a) {
  constexpr int64_t kBfloat16Bytes = SizeOf(DType::kBfloat16);
  return {.begin = heads.data,
          .row_bytes = count * a.head_size * kBfloat16Bytes,
          .pitch_bytes = heads.stride * kBfloat16Bytes,
          .rows = a.samples * a.positions,
          .type = ElementType::kBfloat16};
}

AttentionCandidate OurKernels(
    Choice choice, std::function<cudaError_t(cudaStream_t, const AttentionArguments&)> launch) {
  return {.choice = std::move(choice),
          .launch =
              [launch = std::move(launch)](cudaStream_t stream, const AttentionOperands& operands) {
                return CudaStatus(launch(stream, operands.WithRowSums()), "launch");
              },
          .has_run = nullptr};
}

// Returns what tells the tile apart from the others of its head size.
Choice ChoiceOf(const AttentionTile& tile) {
  Choice choice = {{"rows", tile.rows}, {"step", tile.step}, {"warps", tile.warps}};
  if (tile.stages > 0) choice["stages"] = tile.stages;
  return choice;
}

// Adds those that need at most `shared_bytes` of shared memory per block.
void AddTiles(std::span<const AttentionTile> tiles, int64_t head_size, int64_t shared_bytes,
              std::vector<AttentionCandidate>& candidates) {
  for (const AttentionTile& tile : tiles) {
    if (tile.head_size != head_size || tile.shared_bytes > shared_bytes) continue;
    candidates.push_back(OurKernels(ChoiceOf(tile), tile.launch));
  }
}

std::vector<Area> ForwardResults(const AttentionArguments& a) {
  const int64_t bytes = a.samples * a.positions * a.heads * SizeOf(DType::kFloat32);
  return {AreaOf({a.y, a.heads * a.head_size}, a.heads, a),
          {.begin = a.statistics, .row_bytes = bytes}};
}
std::vector<Area> KeyResults(const AttentionArguments& a) {
  return {AreaOf(a.dk, a.kv_heads, a), AreaOf(a.dv, a.kv_heads, a)};
}
std::vector<Area> QueryResults(const AttentionArguments& a) { return {AreaOf(a.dq, a.heads, a)}; }

}  // namespace

std::vector<Area> AttentionBackwardResults(const AttentionArguments& a) {
  return {AreaOf(a.dq, a.heads, a), AreaOf(a.dk, a.kv_heads, a), AreaOf(a.dv, a.kv_heads, a)};
}

OurAttentionSteps TiledAttentionSteps(const AttentionShape& shape, const Tuner& tuner) {
  const bool by_warpgroups = tuner.has_warpgroup_products() && !IsRestricted(shape);
  const auto step = [&](const char* name, std::span<const AttentionTile> tiles,
                        std::span<const AttentionTile> tiles_of_warpgroups, auto results) {
    AttentionStep made = {.name = name, .candidates = {}, .results = results};
    const int64_t shared_bytes = tuner.block_shared_bytes();
    AddTiles(tiles, shape.head_size, shared_bytes, made.candidates);
    if (by_warpgroups) {
      AddTiles(tiles_of_warpgroups, shape.head_size, shared_bytes, made.candidates);
    }
    return made;
  };
  return {.forward = step("attention forward", AttentionForwardTiles(), {}, ForwardResults),
          .backward = {step("attention dk dv", AttentionKeyTiles(), AttentionKeyTilesOfWarpgroups(),
                            KeyResults),
                       step("attention dq", AttentionQueryTiles(),
                            AttentionQueryTilesOfWarpgroups(), QueryResults)}};
}

OurAttentionSteps PlainAttentionSteps(ElementType type) {
  const auto step = [type](const char* name, auto launch, auto results) {
    return AttentionStep{
        .name = name,
        .candidates = {OurKernels({},
                                  [type, launch](cudaStream_t stream, const AttentionArguments& a) {
                                    return launch(stream, type, a);
                                  })},
        .results = results};
  };
  return {.forward = step("attention forward", LaunchPlainAttentionForward, ForwardResults),
          .backward = {
              step("attention backward", LaunchPlainAttentionBackward, AttentionBackwardResults)}};
}

}  // namespace stagecoach::kernels
