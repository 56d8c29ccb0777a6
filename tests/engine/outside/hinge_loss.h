#ifndef STAGECOACH_TESTS_ENGINE_OUTSIDE_HINGE_LOSS_H_
#define STAGECOACH_TESTS_ENGINE_OUTSIDE_HINGE_LOSS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/nn/loss.h"

// A loss with kernels of its own, as a user may write one: max(0, 1 + max over c != label of y[c] -
// y[label]) for each row (Crammer & Singer 2001). It computes in float32.
namespace outside {

stagecoach::engine::LossFactory Hinge();

// The result of one row.
struct HingeOfRow {
  double loss;
  double right;  // 1 or 0
};

// Launch the CUDA kernels. y, dy (rows, classes)   labels (rows)   of_rows (rows)   result (2). All
// are in GPU memory, including the terms; `dy` may be null.
cudaError_t LaunchHinge(void* stream, int64_t rows, int64_t classes,
                        const stagecoach::kernels::LossTerms* terms, const float* y,
                        const int32_t* labels, float* dy, HingeOfRow* of_rows, double* result);

}  // namespace outside

#endif  // STAGECOACH_TESTS_ENGINE_OUTSIDE_HINGE_LOSS_H_
