# The sources of the CUDA backend, for nvcc (cuda/CMakeLists.txt) and for the emulator (tests/cuda).
set(_ft_cuda ${CMAKE_CURRENT_LIST_DIR})
file(GLOB FT_CUDA_KERNEL_SOURCES CONFIGURE_DEPENDS ${_ft_cuda}/kernels/*.cu)
# Among those of the backend: what bench/gpu_check takes alone.
file(GLOB FT_CUDA_PROBE_SOURCES CONFIGURE_DEPENDS ${_ft_cuda}/runtime/probe*.cu ${_ft_cuda}/runtime/probe*.cc)
file(GLOB FT_CUDA_BACKEND_SOURCES CONFIGURE_DEPENDS ${_ft_cuda}/runtime/*.cu ${_ft_cuda}/runtime/*.cc ${_ft_cuda}/ops/*.cu
     ${_ft_cuda}/ops/*.cc)
