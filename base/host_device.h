#ifndef STAGECOACH_BASE_HOST_DEVICE_H_
#define STAGECOACH_BASE_HOST_DEVICE_H_

// Marks a function that a CUDA compiler makes for both the host and the GPU; empty for other
// compilers.
#ifdef __CUDACC__
#define STAGECOACH_HOST_DEVICE __host__ __device__
#else
#define STAGECOACH_HOST_DEVICE
#endif

#endif  // STAGECOACH_BASE_HOST_DEVICE_H_
