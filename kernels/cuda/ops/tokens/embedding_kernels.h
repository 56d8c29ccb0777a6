#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_EMBEDDING_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_EMBEDDING_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of EmbeddingOp (kernels/ops/embedding.h has the formulas and shapes). `void` pointers
// are to elements of the type passed with them.
namespace stagecoach::kernels {

// The limit of a grid: 2^16 - 1 blocks of at least 256 features side by side.
inline constexpr int64_t kMaxEmbeddingFeatures = int64_t{1} << 23;

struct EmbeddingForwardArguments {
  int64_t ids_count = 1;                    // R T
  int64_t positions = 1;                    // T
  int64_t sequence = 0;                     // S
  const int64_t* first_position = nullptr;  // null without a sequence
  int64_t vocabulary = 1;                   // V
  int64_t features = 1;                     // C
  float scale = 1.0F;                       // of the tokens
  int64_t all_ids = 0;                      // W; positions are then for the first block alone
  int64_t first = 0;
  const int32_t* ids = nullptr;
  const void* tokens = nullptr;
  const void* position_table = nullptr;  // may be null
  void* y = nullptr;
};
cudaError_t LaunchEmbeddingForward(cudaStream_t stream, ElementType type,
                                   const EmbeddingForwardArguments& arguments);

// The gradient of the tokens alone: that of positions is made of column sums
// (column_sums_kernels.h). The rows of dy are in the order of their ids (id_order_kernels.h);
// groups of kEmbeddingGroup of them are summed separately, and a group's sum for an id is added to
// those of the groups before it. The order is that of all ids, also where only a block of them is
// wanted.
inline constexpr int64_t kEmbeddingGroup = 64;

struct EmbeddingBackwardArguments {
  int64_t ids_count = 1;
  int64_t vocabulary = 1;
  int64_t features = 1;
  float scale = 1.0F;
  int64_t all_ids = 0;
  int64_t first = 0;
  const int32_t* ids = nullptr;
  const void* dy = nullptr;
  float* dtokens = nullptr;
  bool accumulate = false;
  std::byte* workspace = nullptr;  // EmbeddingBackwardBytes, aligned to 16 bytes
};
int64_t EmbeddingBackwardBytes(int64_t ids_count, int64_t features);
cudaError_t LaunchEmbeddingBackward(cudaStream_t stream, ElementType type,
                                    const EmbeddingBackwardArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_EMBEDDING_KERNELS_H_
