#include "kernels/cuda/ops/linear/few_rows.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/runtime/cuda_recording.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/measure.h"

namespace stagecoach::kernels {
namespace {

constexpr DType kType = DType::kBfloat16;

// The library is the first candidate; the others are the tiles, in their order.
Choice ChoiceOf(size_t candidate) {
  if (candidate == 0) return {{"blocks", 0}, {"columns", 0}, {"warps", 0}};
  const FewRowsTile& tile = FewRowsTiles()[candidate - 1];
  return {{"blocks", tile.blocks}, {"columns", tile.columns}, {"warps", tile.warps}};
}

// Returns the number of candidates if this choice is not among them.
size_t CandidateOf(const Choice& choice) {
  size_t candidate = 0;
  while (candidate <= FewRowsTiles().size() && ChoiceOf(candidate) != choice) ++candidate;
  return candidate;
}

struct FewRowsOperands {
  FewRowsArguments arguments;
  std::vector<std::byte*> matrices;  // used as w in turn
  Area workspace;
};

FewRowsOperands Arrange(const LinearShape& shape, int64_t workspace_bytes, Layout& layout) {
  // The total size of the matrices if they are large, and their number if they are small.
  constexpr int64_t kMatricesBytes = int64_t{64} << 20, kMatrices = 8;
  const int64_t size = SizeOf(kType), matrix_bytes = shape.inputs * shape.outputs * size;
  const int64_t matrices = std::clamp(kMatricesBytes / matrix_bytes, int64_t{1}, kMatrices);
  const int64_t y_bytes = shape.rows * shape.outputs * size;
  FewRowsOperands operands;
  operands.arguments = {.rows = shape.rows,
                        .inputs = shape.inputs,
                        .outputs = shape.outputs,
                        .x = layout.Take(shape.rows * shape.inputs * size),
                        .bias = shape.has_bias ? layout.Take(shape.outputs * size) : nullptr,
                        .z = KeepsZ(shape.activation) ? layout.Take(y_bytes) : nullptr,
                        .y = layout.Take(y_bytes)};
  for (int64_t i = 0; i < matrices; ++i) operands.matrices.push_back(layout.Take(matrix_bytes));
  operands.workspace = {.begin = layout.Take(workspace_bytes), .row_bytes = workspace_bytes};
  return operands;
}

absl::Status Fill(const TuningBench& bench, const LinearShape& shape,
                  const FewRowsOperands& operands) {
  const auto fill = [&](const void* begin, int64_t elements, uint32_t seed) {
    if (begin == nullptr) return absl::OkStatus();
    return bench.FillUniform(const_cast<void*>(begin), elements, ElementTypeOf(kType), seed);
  };
  RETURN_IF_ERROR(fill(operands.arguments.x, shape.rows * shape.inputs, 1));
  RETURN_IF_ERROR(fill(operands.arguments.bias, shape.outputs, 2));
  for (const std::byte* const w : operands.matrices) {
    RETURN_IF_ERROR(fill(w, shape.inputs * shape.outputs, 3));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Measure(int gpu, bool starts_early, const LinearShape& shape,
                               const LibraryForward& library) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  Layout sizes(nullptr);
  Arrange(shape, library.workspace_bytes, sizes);
  ASSIGN_OR_RETURN(const TuningBench bench, TuningBench::Create(gpu, sizes.used_bytes()));
  Layout layout(bench.memory());
  const FewRowsOperands operands = Arrange(shape, library.workspace_bytes, layout);
  RETURN_IF_ERROR(Fill(bench, shape, operands));
  const auto issue = [&](cudaStream_t stream, size_t candidate) -> absl::Status {
    FewRowsArguments arguments = operands.arguments;
    arguments.starts_early = arguments.loads_weights_early = starts_early;
    for (const std::byte* const w : operands.matrices) {
      arguments.w = w;
      if (candidate == 0) {
        RETURN_IF_ERROR(
            library.run(stream, arguments, static_cast<std::byte*>(operands.workspace.begin)));
        continue;
      }
      const FewRowsTile& tile = FewRowsTiles()[candidate - 1];
      RETURN_IF_ERROR(CudaStatus(tile.launch(stream, shape.activation, arguments), "few rows"));
    }
    return absl::OkStatus();
  };
  // Graphs are needed because the host takes longer to issue one product than a GPU to compute it.
  std::vector<std::unique_ptr<CudaRecording>> graphs;
  for (size_t i = 0; i <= FewRowsTiles().size(); ++i) {
    graphs.push_back(std::make_unique<CudaRecording>(gpu));
  }
  const int64_t y_bytes = shape.rows * shape.outputs * SizeOf(kType);
  Trial trial = {.candidates = graphs.size(),
                 .run =
                     [&](cudaStream_t stream, size_t candidate) {
                       return graphs[candidate]->Play(stream,
                                                      [&] { return issue(stream, candidate); });
                     },
                 .follow = {},
                 .results = {{.begin = operands.arguments.y,
                              .row_bytes = y_bytes,
                              .type = ElementTypeOf(kType)}},
                 .workspace = operands.workspace};
  if (operands.arguments.z != nullptr) {
    trial.results.push_back(
        {.begin = operands.arguments.z, .row_bytes = y_bytes, .type = ElementTypeOf(kType)});
  }
  ASSIGN_OR_RETURN(const Fastest fastest, bench.FindFastest(trial));
  return fastest.candidate;
}

}  // namespace

absl::StatusOr<const FewRowsTile*> ChooseFewRows(Tuner& tuner, const LinearShape& shape,
                                                 const LibraryForward& library) {
  const std::string work =
      absl::StrCat("few rows bf16 ", shape.rows, "x", shape.inputs, "x", shape.outputs, ", ",
                   ActivationName(shape.activation), shape.has_bias ? ", bias" : "");
  size_t candidate = 0;
  if (tuner.measures()) {
    ASSIGN_OR_RETURN(
        const Choice choice,
        tuner.Choose(
            work, [](const Choice& kept) { return CandidateOf(kept) <= FewRowsTiles().size(); },
            [&]() -> absl::StatusOr<Choice> {
              const absl::StatusOr<size_t> fastest =
                  Measure(tuner.gpu(), tuner.starts_kernels_early(), shape, library);
              RETURN_IF_ERROR(base::Annotate(fastest.status(), work));
              return ChoiceOf(*fastest);
            }));
    candidate = CandidateOf(choice);
  }
  tuner.Tell(absl::StrCat(work, ", on ", tuner.model()),
             candidate == 0 ? "cuBLASLt" : ToString(ChoiceOf(candidate)));
  return candidate == 0 ? nullptr : &FewRowsTiles()[candidate - 1];
}

}  // namespace stagecoach::kernels
