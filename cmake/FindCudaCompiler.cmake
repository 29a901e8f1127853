# Chooses nvcc and enables CUDA. In this order: CMAKE_CUDA_COMPILER or CUDACXX, as they are; the nvcc of CUDA_HOME or PATH,
# if it is new enough; the toolkit wheels (nvidia-cuda-nvcc and its kind) of this Python.
# find_package(CUDAToolkit) is not used: it wants libcudart.so, which the wheels lack, and we link the static runtime.
set(FREETOKEN_CUDA_OLDEST 12.8)  # the first that knows sm_100 and sm_120

function(_ft_nvcc_is_new_enough result path)
  set(${result} FALSE PARENT_SCOPE)
  execute_process(COMMAND ${path} --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND text MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL FREETOKEN_CUDA_OLDEST)
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

function(_ft_nvcc_of_wheels result)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia, os; print(*[p + '/cu13/bin/nvcc' for p in nvidia.__path__ if os.path.exists(p + '/cu13/bin/nvcc')][:1])"
    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${path}" PARENT_SCOPE)
endfunction()

# A build tree that outlived the environment of its wheels: pip builds in a new one every time.
if(CMAKE_CUDA_COMPILER AND NOT EXISTS "${CMAKE_CUDA_COMPILER}")
  unset(CMAKE_CUDA_COMPILER CACHE)
  unset(CMAKE_CUDA_COMPILER)
  file(REMOVE ${CMAKE_BINARY_DIR}/CMakeFiles/${CMAKE_VERSION}/CMakeCUDACompiler.cmake)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  unset(_ft_nvcc CACHE)
  find_program(_ft_nvcc nvcc HINTS $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin NO_CMAKE_PATH NO_CMAKE_SYSTEM_PATH)
  set(_ft_usable FALSE)
  if(_ft_nvcc)
    _ft_nvcc_is_new_enough(_ft_usable ${_ft_nvcc})
  endif()
  if(NOT _ft_usable)
    _ft_nvcc_of_wheels(_ft_nvcc)
  endif()
  if(NOT _ft_nvcc)
    message(FATAL_ERROR "FREETOKEN_CUDA needs nvcc ${FREETOKEN_CUDA_OLDEST} or newer: put it on PATH, or pip install "
            "nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.* "
            "nvidia-cuda-cccl==13.0.* (all of one version)")
  endif()
  set(CMAKE_CUDA_COMPILER ${_ft_nvcc})
endif()
# The wheels have lib/, where nvcc looks for lib64/.
if(CMAKE_CUDA_COMPILER)
  get_filename_component(_ft_cuda_root "${CMAKE_CUDA_COMPILER}/../.." ABSOLUTE)
  if(EXISTS ${_ft_cuda_root}/lib/libcudart_static.a AND NOT EXISTS ${_ft_cuda_root}/lib64)
    string(APPEND CMAKE_CUDA_FLAGS " -L${_ft_cuda_root}/lib")
  endif()
endif()
# The library and the core exchange C++ objects: one C++ compiler for both.
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
enable_language(CUDA)
