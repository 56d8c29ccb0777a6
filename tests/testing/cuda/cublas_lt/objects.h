#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_OBJECTS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_OBJECTS_H_

#include <cublasLt.h>

#include <cstdint>

// The contents of cuBLASLt's opaque objects in the stand-in. Attributes have the defaults of
// cublasLt.h.
struct cublasLtContext {
  int gpu;  // a handle belongs to the GPU that was current when it was created
};

namespace stagecoach::testing::cuda {

template <typename Opaque>
struct Zeroed : Opaque {
  Zeroed() : Opaque() {}
};

struct MatmulDesc : Zeroed<cublasLtMatmulDescOpaque_t> {
  int32_t compute_type = CUBLAS_COMPUTE_32F, scale_type = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int32_t bias_type = -1;  // the type of D
  void* aux = nullptr;
  int64_t aux_leading = 0;
  int32_t aux_type = -1;  // the type of D
  int32_t multiprocessors = 0;
};

struct MatrixLayout : Zeroed<cublasLtMatrixLayoutOpaque_t> {
  uint32_t type = CUDA_R_32F;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;
};

struct MatmulPreference : Zeroed<cublasLtMatmulPreferenceOpaque_t> {
  uint32_t search_mode = CUBLASLT_SEARCH_BEST_FIT;
  uint64_t max_workspace_bytes = 0;
  uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
  float max_waves = 0.0F;
};

// Returns the object behind a handle; null for a null handle. Aborts if it has been destroyed or
// was never made by the stand-in.
const cublasLtContext* Find(cublasLtHandle_t handle);
const MatmulDesc* Find(cublasLtMatmulDesc_t handle);
const MatrixLayout* Find(cublasLtMatrixLayout_t handle);
const MatmulPreference* Find(cublasLtMatmulPreference_t handle);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_OBJECTS_H_
