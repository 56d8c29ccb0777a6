# The sources of libstagecoach_cuda.so: host code, and device code that nvcc compiles, or a C++ compiler for tests without a GPU.
file(GLOB_RECURSE stagecoach_cuda_host_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cc")
file(GLOB_RECURSE stagecoach_cuda_device_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cu")

# Kernels by warpgroups exist for compute capability 9.0 alone, in code for sm_90a; builds for other GPUs have a file without them instead.
set(stagecoach_cuda_warpgroup_sources "${CMAKE_CURRENT_LIST_DIR}/ops/attention/attention_warpgroup_backward.cu")
set(stagecoach_cuda_no_warpgroup_sources "${CMAKE_CURRENT_LIST_DIR}/ops/attention/attention_no_warpgroups.cu")
list(REMOVE_ITEM stagecoach_cuda_device_sources ${stagecoach_cuda_warpgroup_sources} ${stagecoach_cuda_no_warpgroup_sources})
