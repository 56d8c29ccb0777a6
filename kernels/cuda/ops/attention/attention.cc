#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/attention/attention_cudnn.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_shape.h"
#include "kernels/cuda/ops/attention/attention_steps.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/measure.h"
#include "kernels/cuda/tuning/tuner.h"

namespace stagecoach::kernels {
namespace {

class CudaAttention final : public AttentionOp {
 public:
  CudaAttention(const AttentionShape& shape, DType type, const Tuner& tuner)
      : shape_(shape),
        factors_(FactorsOf(shape)),
        type_(ElementTypeOf(type)),
        element_bytes_(SizeOf(type)),
        // The choice depends on type and head size alone: null addresses and strides of 0 stand for
        // the rest.
        is_tiled_(FitsAttentionTiles(type_, {.head_size = shape.head_size})),
        our_steps_(is_tiled_ ? TiledAttentionSteps(shape, tuner) : PlainAttentionSteps(type_)),
        forward_(our_steps_.forward),
        backward_{.name = "attention backward",
                  .candidates = {{{{"tiles", 1}},
                                  [this](cudaStream_t stream, const AttentionOperands& operands) {
                                    return RunOurBackward(stream, operands);
                                  },
                                  nullptr}},
                  .results = AttentionBackwardResults} {
    row_sums_at_ = Take(rows() * shape_.heads * SizeOf(DType::kFloat32));
    if (turns()) {
      turns_at_ = Take(shape_.positions * shape_.head_size * SizeOf(DType::kFloat32));
      turned_at_ = Take(rows() * turned_heads() * shape_.head_size * element_bytes_);
    }
    // This does not depend on whether cuDNN is available: plans of memory must not.
    if (is_tiled_) {
      const CudnnParts parts = PartsForCudnn(shape, kCudnnScratchBytes);
      backward_.may_be_others = parts.samples > 0;
      cudnn_scratch_bytes_ = parts.scratch_bytes;
      cudnn_scratch_at_ = Take(cudnn_scratch_bytes_);
    }
  }
  CudaAttention(const CudaAttention&) = delete;
  CudaAttention& operator=(const CudaAttention&) = delete;

  // Selects the fastest candidate of each step, or without a tuning file the first one, which is
  // ours. Waits for the GPU if it measures.
  absl::Status Choose(Tuner& tuner, CudnnAttentions& cudnn) {
    if (tuner.measures() && cudnn_scratch_bytes_ > 0) AddCudnn(cudnn);
    RETURN_IF_ERROR(Choose(tuner, forward_));
    for (AttentionStep& step : our_steps_.backward) RETURN_IF_ERROR(Choose(tuner, step));
    return Choose(tuner, backward_);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Forward(Stream& stream, const Tensor& qkv, const Tensor& documents,
                       const Tensor& statistics, const Tensor& y, std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    ASSIGN_OR_RETURN(const AttentionOperands operands,
                     Prepare(compute, {qkv.data, DocumentsOf(documents), statistics.f32(), y.data,
                                       nullptr, nullptr, workspace}));
    return forward_.Launch(compute, operands);
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& qkv,
                             const Tensor& documents, const Tensor& y, const Tensor& statistics,
                             const Tensor& dqkv, std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    ASSIGN_OR_RETURN(const AttentionOperands operands,
                     Prepare(compute, {qkv.data, DocumentsOf(documents), statistics.f32(), y.data,
                                       dy.data, dqkv.data, workspace}));
    return backward_.Launch(compute, operands);
  }

 private:
  struct Places {
    void* qkv;
    int32_t* documents;  // null: none
    float* statistics;
    void *y, *dy, *dqkv;  // the last two are for backward only, otherwise null
    std::byte* workspace;
  };

  int32_t* DocumentsOf(const Tensor& documents) const {
    return shape_.has_documents ? documents.i32() : nullptr;
  }
  bool turns() const { return shape_.rotary_base > 0.0F; }
  int64_t rows() const { return shape_.samples * shape_.positions; }
  int64_t turned_heads() const { return shape_.heads + shape_.kv_heads; }
  int64_t packed_heads() const { return shape_.heads + 2 * shape_.kv_heads; }

  // Returns the packed tensor's heads from number `first` on.
  template <typename Pointer>
  HeadsOf<Pointer> Heads(void* packed, int64_t first) const {
    return {static_cast<std::byte*>(packed) + first * shape_.head_size * element_bytes_,
            packed_heads() * shape_.head_size};
  }

  int64_t Take(int64_t bytes) {
    return std::exchange(workspace_bytes_, workspace_bytes_ + AlignScratch(bytes));
  }

  // Prepares the operands of the candidates; rotates queries and keys if the shape has rotary
  // positions.
  absl::StatusOr<AttentionOperands> Prepare(cudaStream_t compute, const Places& places) const;
  absl::Status Turn(cudaStream_t compute, std::byte* workspace,
                    AttentionArguments& arguments) const;
  absl::Status FormRowSums(cudaStream_t compute, const AttentionOperands& operands) const;
  absl::Status RunOurBackward(cudaStream_t compute, const AttentionOperands& operands) const;
  absl::Status RunCudnn(CudnnAttention& cudnn, CudnnAttention::Pass pass, size_t way,
                        cudaStream_t compute, const AttentionOperands& operands) const;

  void AddCudnn(CudnnAttentions& attentions);
  absl::Status Choose(Tuner& tuner, AttentionStep& step) const;
  // The memory on which candidates are tried.
  struct Bench {
    TuningBench bench;
    AttentionOperands operands;
  };
  // Prepares the bench. The candidates of the previous steps have already been selected.
  absl::StatusOr<Bench> PrepareBench(int gpu, const AttentionStep& step) const;
  // Returns the fastest candidate.
  absl::StatusOr<size_t> Measure(int gpu, const AttentionStep& step) const;
  // Returns whether the candidate runs. If it never has, it is run here, so that nothing is
  // compiled or loaded while work is captured.
  bool Runs(int gpu, const AttentionStep& step, size_t candidate) const;
  Places Arrange(Layout& layout) const;

  const AttentionShape shape_;
  const ScoreFactors factors_;
  const ElementType type_;
  const int64_t element_bytes_;
  const bool is_tiled_;
  OurAttentionSteps our_steps_;
  AttentionStep forward_, backward_;
  int64_t workspace_bytes_ = 0;
  // Offsets in the workspace: dy y (B, H, T); with rotary positions also their rotations (T, D/2),
  // and rotated queries and keys (B, T, H + G, D); cuDNN's scratch.
  int64_t row_sums_at_ = 0, turns_at_ = 0, turned_at_ = 0;
  int64_t cudnn_scratch_at_ = 0, cudnn_scratch_bytes_ = 0;
};

absl::StatusOr<AttentionOperands> CudaAttention::Prepare(cudaStream_t compute,
                                                         const Places& places) const {
  AttentionOperands operands = {.arguments = {.samples = shape_.samples,
                                              .positions = shape_.positions,
                                              .heads = shape_.heads,
                                              .kv_heads = shape_.kv_heads,
                                              .head_size = shape_.head_size,
                                              .factors = factors_,
                                              .window = WindowOf(shape_),
                                              .documents = places.documents,
                                              .q = Heads<const void*>(places.qkv, 0),
                                              .k = Heads<const void*>(places.qkv, shape_.heads),
                                              .v = Heads<const void*>(places.qkv, turned_heads()),
                                              .y = places.y,
                                              .statistics = places.statistics}};
  if (places.workspace != nullptr) {
    operands.row_sums = reinterpret_cast<float*>(places.workspace + row_sums_at_);
    operands.cudnn_scratch = places.workspace + cudnn_scratch_at_;
  }
  AttentionArguments& arguments = operands.arguments;
  if (turns()) RETURN_IF_ERROR(Turn(compute, places.workspace, arguments));
  if (places.dqkv != nullptr) {
    arguments.dy = places.dy;
    arguments.dq = Heads<void*>(places.dqkv, 0);
    arguments.dk = Heads<void*>(places.dqkv, shape_.heads);
    arguments.dv = Heads<void*>(places.dqkv, turned_heads());
  }
  // The choice of kernels must not depend on the addresses of tensors, because the bits depend on
  // it.
  if (is_tiled_ && !FitsAttentionTiles(type_, arguments)) {
    return absl::InvalidArgumentError("attention: addresses must be multiples of 16");
  }
  return operands;
}

absl::Status CudaAttention::FormRowSums(cudaStream_t compute,
                                        const AttentionOperands& operands) const {
  return CudaStatus(LaunchAttentionRowSums(compute, type_, operands.arguments, operands.row_sums),
                    "LaunchAttentionRowSums");
}

absl::Status CudaAttention::RunOurBackward(cudaStream_t compute,
                                           const AttentionOperands& operands) const {
  RETURN_IF_ERROR(FormRowSums(compute, operands));
  for (const AttentionStep& step : our_steps_.backward)
    RETURN_IF_ERROR(step.Launch(compute, operands));
  return absl::OkStatus();
}

absl::Status CudaAttention::RunCudnn(CudnnAttention& cudnn, CudnnAttention::Pass pass, size_t way,
                                     cudaStream_t compute,
                                     const AttentionOperands& operands) const {
  const AttentionArguments& a = operands.arguments;
  RETURN_IF_ERROR(cudnn.Launch(compute, pass, way, a, operands.row_sums, operands.cudnn_scratch));
  if (pass == CudnnAttention::Pass::kForward || !turns()) return absl::OkStatus();
  const TurnArguments turn = {.samples = shape_.samples,
                              .positions = shape_.positions,
                              .heads = turned_heads(),
                              .head_size = shape_.head_size,
                              .turns = a.turns,
                              .x = {a.dq.data, a.dq.stride},
                              .y = a.dq,
                              .back = true};
  return CudaStatus(LaunchTurn(compute, type_, turn), "LaunchTurn");
}

void CudaAttention::AddCudnn(CudnnAttentions& attentions) {
  const std::shared_ptr<CudnnAttention> cudnn = attentions.For(shape_);
  if (cudnn == nullptr) return;
  for (const auto pass : {CudnnAttention::Pass::kForward, CudnnAttention::Pass::kBackward}) {
    AttentionStep& step = pass == CudnnAttention::Pass::kForward ? forward_ : backward_;
    for (size_t way = 0; way < cudnn->ways(pass); ++way) {
      step.candidates.push_back(
          {cudnn->choice(pass, way),
           [this, cudnn, pass, way](cudaStream_t stream, const AttentionOperands& operands) {
             return RunCudnn(*cudnn, pass, way, stream, operands);
           },
           [cudnn, pass, way] { return cudnn->has_run(pass, way); }});
      step.library = absl::StrCat("cuDNN ", attentions.version());
    }
  }
}

absl::Status CudaAttention::Turn(cudaStream_t compute, std::byte* workspace,
                                 AttentionArguments& arguments) const {
  const int64_t D = shape_.head_size;
  auto* const table = reinterpret_cast<float2*>(workspace + turns_at_);
  const RotaryArguments rotary = {.positions = shape_.positions,
                                  .head_size = D,
                                  .rotary_size = shape_.rotary_size > 0 ? shape_.rotary_size : D,
                                  .log2_base = std::log2(static_cast<double>(shape_.rotary_base)),
                                  .scaling = shape_.rotary_scaling,
                                  .turns = table};
  RETURN_IF_ERROR(CudaStatus(LaunchRotaryTurns(compute, rotary), "LaunchRotaryTurns"));
  std::byte* const turned = workspace + turned_at_;
  const TurnArguments turn = {.samples = shape_.samples,
                              .positions = shape_.positions,
                              .heads = turned_heads(),
                              .head_size = D,
                              .turns = table,
                              .x = arguments.q,
                              .y = {turned, turned_heads() * D}};
  RETURN_IF_ERROR(CudaStatus(LaunchTurn(compute, type_, turn), "LaunchTurn"));
  arguments.q = {turned, turned_heads() * D};
  arguments.k = {turned + shape_.heads * D * element_bytes_, turned_heads() * D};
  arguments.turns = table;
  return absl::OkStatus();
}

absl::Status CudaAttention::Choose(Tuner& tuner, AttentionStep& step) const {
  const std::vector<AttentionCandidate>& candidates = step.candidates;
  if (candidates.size() == 1 && !step.may_be_others) return absl::OkStatus();
  const std::string work = absl::StrCat(step.name, " bf16 ", TextOf(shape_));
  if (tuner.measures() && candidates.size() > 1) {
    const auto place_of = [&](const Choice& choice) {
      const auto found = std::find_if(
          candidates.begin(), candidates.end(),
          [&](const AttentionCandidate& candidate) { return candidate.choice == choice; });
      return static_cast<size_t>(found - candidates.begin());
    };
    const auto is_known = [&](const Choice& kept) {
      const size_t place = place_of(kept);
      return place < candidates.size() && Runs(tuner.gpu(), step, place);
    };
    const auto measure = [&]() -> absl::StatusOr<Choice> {
      const absl::StatusOr<size_t> fastest = Measure(tuner.gpu(), step);
      RETURN_IF_ERROR(base::Annotate(fastest.status(), work));
      return candidates[*fastest].choice;
    };
    // Measurements without the library say nothing about its speed.
    const std::string key = step.library.empty() ? work : absl::StrCat(step.library, ", ", work);
    ASSIGN_OR_RETURN(const Choice choice, tuner.Choose(key, is_known, measure));
    step.taken = place_of(choice);
  }
  tuner.Tell(absl::StrCat(work, ", on ", tuner.model()), ToString(candidates[step.taken].choice));
  return absl::OkStatus();
}

CudaAttention::Places CudaAttention::Arrange(Layout& layout) const {
  const int64_t head_bytes = rows() * shape_.head_size * element_bytes_;
  const auto take = [&](int64_t bytes) { return static_cast<void*>(layout.Take(bytes)); };
  Places places;
  places.qkv = take(packed_heads() * head_bytes);
  const int64_t document_bytes = shape_.has_documents ? rows() * SizeOf(DType::kInt32) : 0;
  auto* const documents = static_cast<int32_t*>(take(document_bytes));
  places.documents = shape_.has_documents ? documents : nullptr;
  places.statistics = static_cast<float*>(take(rows() * shape_.heads * SizeOf(DType::kFloat32)));
  places.y = take(shape_.heads * head_bytes);
  places.dy = take(shape_.heads * head_bytes);
  places.dqkv = take(packed_heads() * head_bytes);
  places.workspace = layout.Take(workspace_bytes_);
  return places;
}

absl::StatusOr<CudaAttention::Bench> CudaAttention::PrepareBench(int gpu,
                                                                 const AttentionStep& step) const {
  Layout sizes(nullptr);
  Arrange(sizes);
  ASSIGN_OR_RETURN(TuningBench bench, TuningBench::Create(gpu, sizes.used_bytes()));
  Layout layout(bench.memory());
  const Places places = Arrange(layout);
  const int64_t head_elements = rows() * shape_.head_size;
  RETURN_IF_ERROR(bench.FillUniform(places.qkv, packed_heads() * head_elements, type_, 1));
  RETURN_IF_ERROR(bench.FillUniform(places.dy, shape_.heads * head_elements, type_, 2));
  // The whole sample is one document, whose kernels have the most work.
  if (places.documents != nullptr) {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(places.documents, 0, static_cast<size_t>(rows() * SizeOf(DType::kInt32)),
                        bench.stream()),
        "cudaMemsetAsync"));
  }
  ASSIGN_OR_RETURN(const AttentionOperands operands, Prepare(bench.stream(), places));
  if (&step != &forward_) {
    RETURN_IF_ERROR(forward_.Launch(bench.stream(), operands));
    RETURN_IF_ERROR(FormRowSums(bench.stream(), operands));
  }
  return Bench{std::move(bench), operands};
}

absl::StatusOr<size_t> CudaAttention::Measure(int gpu, const AttentionStep& step) const {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(const Bench bench, PrepareBench(gpu, step));
  const AttentionOperands& operands = bench.operands;
  ASSIGN_OR_RETURN(
      const Fastest fastest,
      bench.bench.FindFastest(
          {.candidates = step.candidates.size(),
           .run =
               [&](cudaStream_t stream, size_t candidate) {
                 return base::Annotate(step.candidates[candidate].launch(stream, operands),
                                       step.name);
               },
           .follow = {},
           .results = step.results(operands.arguments),
           .workspace = {.begin = operands.cudnn_scratch, .row_bytes = cudnn_scratch_bytes_}}));
  return fastest.candidate;
}

bool CudaAttention::Runs(int gpu, const AttentionStep& step, size_t candidate) const {
  const AttentionCandidate& tried = step.candidates[candidate];
  if (tried.has_run == nullptr || tried.has_run()) return true;
  const auto run = [&]() -> absl::Status {
    const GpuScope scope(gpu);
    RETURN_IF_ERROR(scope.status());
    ASSIGN_OR_RETURN(const Bench bench, PrepareBench(gpu, step));
    RETURN_IF_ERROR(tried.launch(bench.bench.stream(), bench.operands));
    return CudaStatus(cudaStreamSynchronize(bench.bench.stream()), "cudaStreamSynchronize");
  };
  const absl::Status status = run();
  return status.ok() || absl::IsResourceExhausted(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCuda(const AttentionShape& shape,
                                                          Device& device) {
  RETURN_IF_ERROR(CheckAttention(shape, kMaxCudaExtent));
  // These limits let any grid of these kernels count its blocks in 31 bits.
  constexpr int64_t kMaxHeadSize = int64_t{1} << 16, kMaxNumbers = int64_t{1} << 38;
  const int64_t rows = shape.samples * shape.positions * (shape.heads + 2 * shape.kv_heads);
  if (shape.head_size > kMaxHeadSize || rows > kMaxNumbers / shape.head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: on CUDA devices, the head size must be 1 to ", kMaxHeadSize,
                     ", and all heads "
                     "of all positions have at most ",
                     kMaxNumbers, " numbers: ", rows, " heads of size ", shape.head_size));
  }
  Tuner& tuner = TunerOf(device);
  auto op = std::make_unique<CudaAttention>(shape, device.activation_type(), tuner);
  RETURN_IF_ERROR(op->Choose(tuner, CudnnAttentionsOf(device)));
  return std::unique_ptr<AttentionOp>(std::move(op));
}

}  // namespace stagecoach::kernels
