# The sources of libstagecoach_cuda.so: host code, and device code that nvcc compiles, or a C++ compiler for tests without a GPU.
file(GLOB_RECURSE stagecoach_cuda_host_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cc")
file(GLOB_RECURSE stagecoach_cuda_device_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cu")
