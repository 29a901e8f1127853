# libfreetoken.so, its headers and its CMake package, inside the Python package: freetoken/{lib,include,cmake}.
include(CMakePackageConfigHelpers)

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/api/*.cc)
add_library(freetoken SHARED ${sources})
target_link_libraries(freetoken PRIVATE ft_engine ft_cpu ft_weights ft_options ${CMAKE_DL_LIBS})
# Hidden visibility leaves the weak symbols of templates; the script exports the public API and nothing else.
set(exports ${PROJECT_SOURCE_DIR}/cmake/freetoken.map)
target_link_options(freetoken PRIVATE "LINKER:--version-script=${exports}" "LINKER:--gc-sections")
set_target_properties(freetoken PROPERTIES LINK_DEPENDS ${exports})

set(config ${PROJECT_BINARY_DIR}/freetoken-config-version.cmake)
write_basic_package_version_file(${config} VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(TARGETS freetoken LIBRARY DESTINATION freetoken/lib)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/cpp/include/ DESTINATION freetoken/include)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/freetoken-config.cmake ${config} DESTINATION freetoken/cmake)
