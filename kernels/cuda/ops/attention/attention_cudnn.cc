#include "kernels/cuda/ops/attention/attention_cudnn.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/attention/attention_shape.h"
#include "kernels/cuda/runtime/handles.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kElementBytes = SizeOf(DType::kBfloat16);

// Shorter sequences take no time.
constexpr int64_t kFewestPositions = 64;
// The largest useful size of a part, in blocks of 128 positions of heads: it keeps a GPU of 132
// multiprocessors busy to the end although the last positions have the most work. On an H200, this
// many took 0.311 ms at once (16 x 1,024 positions, 12 heads of 64), and 0.354 in two parts.
constexpr int64_t kBlock = 128, kBlocksOfPart = 1536;
// Scratch for forward, and for the rest of backward: cuDNN 9.19 asks for 256 bytes.
constexpr int64_t kFewBytes = 4096;

int64_t RoundedUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Returns the scratch of the heads that share one kv head.
int64_t ScratchOfGroup(const AttentionShape& shape) {
  const int64_t T = shape.positions, group = shape.heads / shape.kv_heads;
  const int64_t square = RoundedUp(T, kBlock) * RoundedUp(T, kBlock);
  const int64_t of_head = square + (group > 1 ? 2 * T * shape.head_size : 0);
  return group * of_head * kElementBytes;
}

// Splits `count` into equal parts of at most `most` each: into between the fewest possible and
// twice as many, so that the parts overlap the least. Returns the size of a part.
int64_t InEqualParts(int64_t count, int64_t most) {
  const int64_t fewest = (count + most - 1) / most;
  int64_t best = fewest, least = count * 2;
  for (int64_t parts = fewest; parts <= std::min(2 * fewest, count); ++parts) {
    const int64_t in_all = RoundedUp(count, parts);
    if (in_all < least) {
      best = parts;
      least = in_all;
    }
  }
  return (count + best - 1) / best;
}

// The operands of a part that begins at this sample and kv head.
struct Part {
  int64_t first_sample, first_kv_head;
};

class PartOperands {
 public:
  PartOperands(const AttentionArguments& a, Part part)
      : a_(a),
        position_(part.first_sample * a.positions),
        kv_head_(part.first_kv_head),
        head_(part.first_kv_head * (a.heads / a.kv_heads)),
        row_((part.first_sample * a.heads + head_) * a.positions) {}

  template <typename Pointer>
  const void* OfHeads(const HeadsOf<Pointer>& heads) const {
    return At(heads.data, position_ * heads.stride + head_ * a_.head_size);
  }
  template <typename Pointer>
  const void* OfKvHeads(const HeadsOf<Pointer>& heads) const {
    return At(heads.data, position_ * heads.stride + kv_head_ * a_.head_size);
  }
  const void* OfOutputs(const void* outputs) const {
    return At(outputs, (position_ * a_.heads + head_) * a_.head_size);
  }
  const float* OfRows(const float* rows) const { return rows + row_; }

 private:
  static const void* At(const void* data, int64_t elements) {
    return static_cast<const std::byte*>(data) + elements * kElementBytes;
  }

  const AttentionArguments& a_;
  const int64_t position_, kv_head_, head_, row_;
};

}  // namespace

CudnnParts PartsForCudnn(const AttentionShape& shape, int64_t most_scratch_bytes) {
  constexpr int64_t kMostPositions = int64_t{1} << 20;  // no product below overflows
  const int64_t T = shape.positions, B = shape.samples, G = shape.kv_heads;
  if (!FitsAttentionTiles(ElementType::kBfloat16, {.head_size = shape.head_size}) ||
      T < kFewestPositions || IsRestricted(shape)) {
    return {};
  }
  constexpr int64_t kAround = kFewBytes + kScratchAlignment;
  const CudnnParts forward_only = {.scratch_bytes = kAround};
  if (T > kMostPositions) return forward_only;
  const int64_t of_group = ScratchOfGroup(shape), left = most_scratch_bytes - kAround;
  if (of_group > left) return forward_only;
  // Statistics of a part must begin at a multiple of 16 bytes, too.
  if (T % 4 != 0 && of_group > left / (B * G)) return forward_only;
  // Returns how many samples or kv heads, with the given heads and bytes each, a part may have.
  const auto most = [&](int64_t heads, int64_t bytes) {
    const int64_t blocks = heads * (RoundedUp(T, kBlock) / kBlock);
    return std::min(left / bytes, (kBlocksOfPart + blocks - 1) / blocks);
  };
  const int64_t H = shape.heads;
  CudnnParts parts = {.samples = 1, .kv_heads = G};
  if (of_group <= left / G) {
    parts.samples = InEqualParts(B, most(H, of_group * G));
  } else {
    parts.kv_heads = InEqualParts(G, most(H / G, of_group));
  }
  // One part has everything, unless parts are aligned.
  if (T % 4 != 0) parts.samples = B;
  parts.scratch_bytes = parts.samples * parts.kv_heads * of_group + kAround;
  return parts;
}

absl::StatusOr<std::unique_ptr<CudnnAttention>> CudnnAttention::Create(
    std::shared_ptr<const cudnn::GpuHandle> handle, const AttentionShape& shape,
    int64_t most_scratch_bytes) {
  const CudnnParts parts = PartsForCudnn(shape, most_scratch_bytes);
  if (parts.scratch_bytes == 0) {
    return absl::UnimplementedError(
        "attention by cuDNN: not of this head size or length, or restricted");
  }
  std::unique_ptr<CudnnAttention> attention(new CudnnAttention(std::move(handle), shape, parts));
  RETURN_IF_ERROR(attention->AddPass(Pass::kForward));
  if (parts.samples > 0) RETURN_IF_ERROR(attention->AddPass(Pass::kBackward));
  return attention;
}

// The plans are destroyed on the GPU on which they were loaded.
CudnnAttention::~CudnnAttention() {
  const GpuScope scope(handle_->gpu());
  for (OfPass& of_pass : of_passes_) {
    of_pass.plans.clear();
    of_pass.engines.clear();
    of_pass.graph.reset();
  }
}

cudnn::AttentionExtents CudnnAttention::Extents(Pass pass) const {
  const int64_t H = shape_.heads, G = shape_.kv_heads, D = shape_.head_size;
  const bool is_part = pass == Pass::kBackward;
  const int64_t kv_heads = is_part ? parts_.kv_heads : G;
  return {.samples = is_part ? parts_.samples : shape_.samples,
          .positions = shape_.positions,
          .heads = kv_heads * (H / G),
          .kv_heads = kv_heads,
          .head_size = D,
          // Rotated queries and keys are a separate tensor.
          .query_stride = (H + (shape_.rotary_base > 0.0F ? 1 : 2) * G) * D,
          .value_stride = (H + 2 * G) * D,
          .output_stride = H * D};
}

absl::Status CudnnAttention::AddPass(Pass pass) {
  OfPass& of_pass = of_passes_[static_cast<size_t>(pass)];
  const cudnn::AttentionExtents extents = Extents(pass);
  ASSIGN_OR_RETURN(of_pass.graph, pass == Pass::kForward
                                      ? cudnn::AttentionForwardGraph(*handle_, extents)
                                      : cudnn::AttentionBackwardGraph(*handle_, extents));
  ASSIGN_OR_RETURN(of_pass.engines, cudnn::DeterministicEngines(*handle_, *of_pass.graph));
  of_pass.has_run = std::make_unique<std::atomic<bool>[]>(of_pass.engines.size());
  return absl::OkStatus();
}

absl::StatusOr<const cudnn::ExecutionPlan*> CudnnAttention::Plan(Pass pass, size_t way) {
  base::MutexLock lock(mutex_);
  OfPass& of_pass = of_passes_[static_cast<size_t>(pass)];
  auto plan = of_pass.plans.find(way);
  if (plan == of_pass.plans.end()) {
    plan = of_pass.plans.emplace(way, cudnn::ExecutionPlan::Create(handle_, of_pass.engines[way]))
               .first;
  }
  RETURN_IF_ERROR(plan->second.status());
  const int64_t needed = plan->second->workspace_bytes();
  if (needed > parts_.scratch_bytes - kScratchAlignment) {
    return absl::UnimplementedError(absl::StrCat("attention by cuDNN: a plan needs ", needed,
                                                 " bytes of scratch, it may have ",
                                                 parts_.scratch_bytes - kScratchAlignment));
  }
  return &*plan->second;
}

absl::Status CudnnAttention::Launch(cudaStream_t stream, Pass pass, size_t way,
                                    const AttentionArguments& a, float* row_sums,
                                    std::byte* scratch) {
  ASSIGN_OR_RETURN(const cudnn::ExecutionPlan* const plan, Plan(pass, way));
  // Scalars are read during the execution of a plan.
  const float scale = a.factors.scale;
  constexpr float kOne = 1.0F, kMinusInfinity = -std::numeric_limits<float>::infinity();
  std::byte* const workspace = AlignScratch(scratch);
  const auto run = [&](Part part) {
    const PartOperands of(a, part);
    std::vector<cudnn::ExecutionPlan::Operand> operands = {
        {cudnn::kQueries, of.OfHeads(a.q)},
        {cudnn::kKeys, of.OfKvHeads(a.k)},
        {cudnn::kValues, of.OfKvHeads(a.v)},
        {cudnn::kOutputs, of.OfOutputs(a.y)},
        {cudnn::kStatistics, of.OfRows(a.statistics)},
        {cudnn::kScale, &scale},
        {cudnn::kMinusInfinity, &kMinusInfinity}};
    if (pass == Pass::kBackward) {
      operands.insert(operands.end(), {{cudnn::kOutputGradients, of.OfOutputs(a.dy)},
                                       {cudnn::kQueryGradients, of.OfHeads(a.dq)},
                                       {cudnn::kKeyGradients, of.OfKvHeads(a.dk)},
                                       {cudnn::kValueGradients, of.OfKvHeads(a.dv)},
                                       {cudnn::kRowSums, of.OfRows(row_sums)},
                                       {cudnn::kOne, &kOne}});
    }
    return plan->Execute(stream, operands, workspace);
  };
  const cudnn::AttentionExtents extents = Extents(pass);
  const int64_t last_sample = shape_.samples - extents.samples;
  const int64_t last_kv_head = shape_.kv_heads - extents.kv_heads;
  // Overlapping parts compute the same values for what they share.
  for (int64_t sample = 0; sample < shape_.samples; sample += extents.samples) {
    for (int64_t kv_head = 0; kv_head < shape_.kv_heads; kv_head += extents.kv_heads) {
      RETURN_IF_ERROR(run({std::min(sample, last_sample), std::min(kv_head, last_kv_head)}));
    }
  }
  of_passes_[static_cast<size_t>(pass)].has_run[way] = true;
  return absl::OkStatus();
}

std::string CudnnAttentions::version() {
  const auto handle = handle_.Get();
  return handle.ok() ? cudnn::VersionText((*handle)->api()) : "";
}

std::shared_ptr<CudnnAttention> CudnnAttentions::For(const AttentionShape& shape) {
  base::MutexLock lock(mutex_);
  const std::vector<int64_t> key = {shape.samples,      shape.positions, shape.heads,
                                    shape.kv_heads,     shape.head_size, shape.rotary_base > 0.0F,
                                    IsRestricted(shape)};
  const auto known = by_shape_.find(key);
  if (known != by_shape_.end()) return known->second;
  std::shared_ptr<CudnnAttention> created;
  const GpuScope scope(handle_.gpu());
  if (const auto handle = handle_.Get(); handle.ok()) {
    if (auto attention = CudnnAttention::Create(*handle, shape); attention.ok()) {
      created = *std::move(attention);
    }
  }
  return by_shape_.emplace(key, std::move(created)).first->second;
}

}  // namespace stagecoach::kernels
