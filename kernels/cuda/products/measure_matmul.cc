#include "kernels/cuda/products/measure_matmul.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/tuning/measure.h"

namespace stagecoach::kernels {
namespace {

// The addresses of a product's operands.
struct Places {
  MatmulPlan::Operands operands;
  std::vector<Area> results;
  Area workspace;
};

Area AreaOf(void* begin, const StoredMatrix& matrix) {
  return {.begin = begin,
          .row_bytes = matrix.row_bytes(),
          .pitch_bytes = matrix.leading_bytes(),
          .rows = matrix.columns,
          .type = ElementTypeOf(matrix.type)};
}

Places Arrange(const MatmulPlan& plan, const Followed& followed, Layout& layout) {
  const Product& product = plan.product();
  const Epilogue epilogue = followed.operands_of.epilogue;
  Places places;
  MatmulPlan::Operands& operands = places.operands;
  operands.a = layout.Take(product.a().bytes());
  operands.b = layout.Take(product.b().bytes());
  operands.bias = layout.Take(product.m * SizeOf(product.result_type));
  operands.d = layout.Take(product.d().bytes());
  places.results.push_back(AreaOf(operands.d, product.d()));
  if (epilogue == Epilogue::kGeluAuxBias) {
    operands.aux = layout.Take(product.d().bytes());
    // A result of the follower is not a result of the product.
    if (product.epilogue == epilogue) places.results.push_back(AreaOf(operands.aux, product.d()));
  }
  places.workspace = {.begin = layout.Take(plan.workspace_bytes()),
                      .row_bytes = plan.workspace_bytes()};
  return places;
}

absl::Status FillOperands(const TuningBench& bench, const Product& product,
                          const MatmulPlan::Operands& operands) {
  const auto fill = [&](const void* operand, int64_t bytes, DType type, uint32_t seed) {
    return bench.FillUniform(const_cast<void*>(operand), bytes / SizeOf(type), ElementTypeOf(type),
                             seed);
  };
  RETURN_IF_ERROR(fill(operands.a, product.a().bytes(), product.operand_type, 1));
  RETURN_IF_ERROR(fill(operands.b, product.b().bytes(), product.operand_type, 2));
  return fill(operands.bias, product.m * SizeOf(product.result_type), product.result_type, 3);
}

}  // namespace

absl::StatusOr<MeasuredAlgorithm> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    const Followed& followed) {
  STAGECOACH_CHECK(!candidates.empty(), "nothing to choose from");
  Layout sizes(nullptr);
  Arrange(plan, followed, sizes);
  ASSIGN_OR_RETURN(const TuningBench bench, TuningBench::Create(gpu, sizes.used_bytes()));
  Layout layout(bench.memory());
  const Places places = Arrange(plan, followed, layout);
  RETURN_IF_ERROR(FillOperands(bench, followed.operands_of, places.operands));
  Trial trial = {.candidates = candidates.size(),
                 .run =
                     [&](cudaStream_t stream, size_t candidate) {
                       plan.Use(candidates[candidate]);
                       return plan.Run(stream, places.operands,
                                       static_cast<std::byte*>(places.workspace.begin));
                     },
                 .follow = {},
                 .results = places.results,
                 .workspace = places.workspace};
  if (followed.follow) {
    trial.follow = [&](cudaStream_t stream) { return followed.follow(stream, places.operands); };
  }
  ASSIGN_OR_RETURN(const Fastest fastest, bench.FindFastest(trial));
  return MeasuredAlgorithm{candidates[fastest.candidate], fastest.milliseconds};
}

}  // namespace stagecoach::kernels
