#ifndef STAGECOACH_TESTS_ENGINE_OUTSIDE_PRELU_H_
#define STAGECOACH_TESTS_ENGINE_OUTSIDE_PRELU_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/nn/layer.h"

// A layer with parameters and kernels of its own, as a user may write one: y = x where x is
// positive and slope x elsewhere, with a slope for each feature (He et al. 2015). It computes in
// float32.
namespace outside {

// Slopes start at `slope`.
stagecoach::engine::LayerFactory Prelu(float slope);

// Launch the CUDA kernels. x, y, dx, dy (rows, features)   slope, dslope (features)
cudaError_t LaunchPreluForward(void* stream, int64_t rows, int64_t features, const float* x,
                               const float* slope, float* y);
cudaError_t LaunchPreluBackwardInput(void* stream, int64_t rows, int64_t features, const float* x,
                                     const float* slope, const float* dy, float* dx);
cudaError_t LaunchPreluBackwardWeight(void* stream, int64_t rows, int64_t features, const float* x,
                                      const float* dy, bool accumulate, float* dslope);

}  // namespace outside

#endif  // STAGECOACH_TESTS_ENGINE_OUTSIDE_PRELU_H_
