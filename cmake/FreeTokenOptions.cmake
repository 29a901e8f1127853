# Flags shared by every target of the project.
add_library(ft_options INTERFACE)
target_compile_options(ft_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                       -fno-math-errno -ffp-contract=off)
if(FREETOKEN_WERROR)
  target_compile_options(ft_options INTERFACE -Werror)
endif()
if(FREETOKEN_SANITIZE)
  add_compile_options(-fsanitize=${FREETOKEN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g)
  add_link_options(-fsanitize=${FREETOKEN_SANITIZE})
endif()
