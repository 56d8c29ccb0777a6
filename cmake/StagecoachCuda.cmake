# Whether the CUDA backend is built: STAGECOACH_HAS_CUDA. Then the language CUDA is enabled, and there are the targets
# CUDA::cudart, CUDA::cublasLt, CUDA::nvtx3 (where CMake knows it) and NCCL::NCCL.
set(STAGECOACH_CUDA AUTO CACHE STRING
    "The CUDA backend: AUTO builds it where nvcc, cuBLASLt and NCCL are found; ON requires them; OFF does not")
set_property(CACHE STAGECOACH_CUDA PROPERTY STRINGS AUTO ON OFF)
option(STAGECOACH_BUILD_CUDA_LIBRARY
       "Build libstagecoach_cuda.so itself; without it, the backend is built for the emulator of tests only" ON)

set(STAGECOACH_HAS_CUDA OFF)
set(cuda_missing "")
if(STAGECOACH_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit 12.4 QUIET)
  find_package(NCCL 2.18 QUIET)
  if(NOT CMAKE_CUDA_COMPILER)
    list(APPEND cuda_missing "a working nvcc")
  endif()
  if(NOT TARGET CUDA::cublasLt OR NOT TARGET CUDA::cudart)
    list(APPEND cuda_missing "the CUDA toolkit's runtime and cuBLASLt, 12.4 or later")
  endif()
  if(NOT NCCL_FOUND)
    list(APPEND cuda_missing "NCCL 2.18 or later (NCCL_ROOT)")
  endif()
  list(JOIN cuda_missing "; " cuda_missing)
  if(NOT cuda_missing)
    set(STAGECOACH_HAS_CUDA ON)
  elseif(NOT STAGECOACH_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "STAGECOACH_CUDA is ${STAGECOACH_CUDA}, but there is no: ${cuda_missing}")
  else()
    message(STATUS "CUDA backend: not built; there is no: ${cuda_missing}")
  endif()
else()
  message(STATUS "CUDA backend: not built; STAGECOACH_CUDA is ${STAGECOACH_CUDA}")
endif()

if(STAGECOACH_HAS_CUDA)
  # What users install runs on every GPU from the A100 on, those to come included; other builds are for sm_90 and later. Each
  # architecture costs as much compilation as the first: CUDAARCHS=native builds for the GPUs that are here alone.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    if(CMAKE_BUILD_TYPE STREQUAL Release)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
      if(CUDAToolkit_VERSION VERSION_LESS 12.8)  # which does not know 100
        set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
      endif()
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the libraries bring the shared one: there must not be two
  enable_language(CUDA)
  if(CMAKE_VERSION VERSION_LESS 3.26)  # which does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${NCCL_VERSION}")
endif()
