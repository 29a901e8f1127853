# Flags shared by every target of the project.
add_library(ft_options INTERFACE)
target_compile_options(ft_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                       -fno-math-errno -ffp-contract=off)
if(FREETOKEN_WERROR)
  target_compile_options(ft_options INTERFACE -Werror)
endif()
if(FREETOKEN_SANITIZE)
  target_compile_options(ft_options INTERFACE -fsanitize=${FREETOKEN_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all -g1)
  target_link_options(ft_options INTERFACE -fsanitize=${FREETOKEN_SANITIZE})
endif()
