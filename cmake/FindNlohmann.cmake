# nlohmann-json comes from PyPI (no CMake config: ask Python for its path) or from the system.
add_library(ft_nlohmann INTERFACE)
find_path(NLOHMANN_INCLUDE_DIR nlohmann/json.hpp)
if(NOT NLOHMANN_INCLUDE_DIR)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nlohmann_json, os; print(os.path.join(os.path.dirname(nlohmann_json.__file__), 'include'))"
    OUTPUT_VARIABLE nlohmann_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(NLOHMANN_INCLUDE_DIR nlohmann/json.hpp HINTS ${nlohmann_dir} NO_DEFAULT_PATH)
endif()
if(NOT NLOHMANN_INCLUDE_DIR)
  message(FATAL_ERROR "nlohmann/json.hpp not found: pip install nlohmann-json, or apt-get install nlohmann-json3-dev")
endif()
target_include_directories(ft_nlohmann SYSTEM INTERFACE ${NLOHMANN_INCLUDE_DIR})
