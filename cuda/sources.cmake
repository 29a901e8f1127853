# The sources of the CUDA backend, for nvcc (cuda/CMakeLists.txt) and for the emulator (tests/cuda).
set(_ft_cuda ${CMAKE_CURRENT_LIST_DIR})
file(GLOB FT_CUDA_KERNEL_SOURCES CONFIGURE_DEPENDS ${_ft_cuda}/kernels/*.cu)
file(GLOB FT_CUDA_PROBE_SOURCES CONFIGURE_DEPENDS ${_ft_cuda}/runtime/probe*.cu ${_ft_cuda}/runtime/probe*.cc)
file(GLOB FT_CUDA_BACKEND_SOURCES CONFIGURE_DEPENDS ${_ft_cuda}/runtime/*.cu ${_ft_cuda}/runtime/*.cc ${_ft_cuda}/ops/*.cu
     ${_ft_cuda}/ops/*.cc)
list(REMOVE_ITEM FT_CUDA_BACKEND_SOURCES ${FT_CUDA_PROBE_SOURCES})
set(FT_CUDA_PROBE_ONLY FALSE)
if(NOT EXISTS ${_ft_cuda}/ops/cuda_ops.cc)
  set(FT_CUDA_PROBE_ONLY TRUE)
endif()
