# Warnings and sanitizers, shared by every target of the project.
add_library(deltaworks_options INTERFACE)
target_compile_options(deltaworks_options INTERFACE -Wall -Wextra -Wpedantic -Werror
                                                    -ffp-contract=off)
if(DELTAWORKS_SANITIZE)
  target_compile_options(deltaworks_options INTERFACE -fsanitize=${DELTAWORKS_SANITIZE}
                                                      -fno-omit-frame-pointer)
  target_link_options(deltaworks_options INTERFACE -fsanitize=${DELTAWORKS_SANITIZE})
endif()
