# find_package(freetoken) gives freetoken::freetoken. Relocatable: everything is found from this file.
get_filename_component(_freetoken_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET freetoken::freetoken)
  add_library(freetoken::freetoken SHARED IMPORTED)
  set_target_properties(freetoken::freetoken PROPERTIES
    IMPORTED_LOCATION "${_freetoken_root}/lib/libfreetoken.so"
    IMPORTED_SONAME libfreetoken.so
    INTERFACE_INCLUDE_DIRECTORIES "${_freetoken_root}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()
unset(_freetoken_root)
