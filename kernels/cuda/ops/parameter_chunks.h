#ifndef STAGECOACH_KERNELS_CUDA_OPS_PARAMETER_CHUNKS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_PARAMETER_CHUNKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cuda/ops/optimizer_kernels.h"
#include "kernels/ops/optimizer.h"

namespace stagecoach::kernels {

// The contents of a ParameterTable. Chunks are in the order of the parameters, and within one in
// the order of its elements; a parameter without elements has none.
struct ParameterChunks {
  std::vector<ParameterChunk> chunks;
  std::vector<int32_t> first_chunk;  // of each parameter, and finally the number of chunks
};

// Aborts if the tensors of a parameter differ in size, or one has a wrong type.
ParameterChunks CutIntoChunks(absl::Span<const ParameterTensors> parameters);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_PARAMETER_CHUNKS_H_
