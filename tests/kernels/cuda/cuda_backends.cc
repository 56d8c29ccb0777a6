// The backends of tests of operations (op_harness.h) in the programs for CUDA devices: emulated
// ones, whose threads run in several orders, or a GPU.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda_backend.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing {
namespace {

absl::StatusOr<std::unique_ptr<kernels::Device>> CreateDevice(kernels::Precision precision) {
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  return backend->CreateDevice({.precision = precision});
}

OpVariant Threads(const std::string& name, kernels::Precision precision, cuda::ThreadOrder order,
                  bool unaligned = false) {
  return {.name = name,
          .create_device =
              [=] {
                cuda::Reset({.gpus = 1, .thread_order = order, .delay = 0.0});
                auto device = CreateDevice(precision);
                STAGECOACH_CHECK_OK(device);
                return *std::move(device);
              },
          .unaligned = unaligned};
}

// Bounds the sum: a thread adds at most 32 values, or a 512th of the row; a warp adds its lanes in
// 5 steps, a block its 16 warps.
OpBackend::RowSum RowSumOf(int64_t terms) {
  const int64_t share = std::min(terms, std::max<int64_t>(32, terms / 512 + 8));
  return {share, std::min(terms, share + 5 + 16)};
}

OpBackend Cuda(const std::string& name, kernels::Precision precision) {
  return {
      .name = name,
      .precision = precision,
      .available = [=] { return CreateDevice(precision).status(); },
      .variants = {Threads("threads in ascending order", precision, cuda::ThreadOrder::kAscending),
                   Threads("threads in descending order", precision,
                           cuda::ThreadOrder::kDescending),
                   Threads("threads in random order", precision, cuda::ThreadOrder::kRandom,
                           /*unaligned=*/true)},
      .row_sum = RowSumOf};
}

}  // namespace

std::vector<OpBackend> OpBackends() {
  return {Cuda("cuda_fp32", kernels::Precision::kFloat32),
          Cuda("cuda_bf16", kernels::Precision::kBfloat16)};
}

std::vector<OpBackend> ProductBackends() {
  std::vector<OpBackend> backends = OpBackends();
  backends.push_back(Cuda("cuda_tf32", kernels::Precision::kTf32));
  return backends;
}

}  // namespace stagecoach::testing
