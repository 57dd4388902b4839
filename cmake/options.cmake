# How the project's own sources are compiled. Nothing of it reaches those who link to the library.
# Warnings become errors where CMAKE_COMPILE_WARNING_AS_ERROR says so, as the presets do: a compiler
# that is newer than the project may warn of more.
add_library(deltaworks_options INTERFACE)
target_compile_options(deltaworks_options INTERFACE -Wall -Wextra -Wpedantic -ffp-contract=off)
if(DELTAWORKS_SANITIZE)
  target_compile_options(deltaworks_options INTERFACE -fsanitize=${DELTAWORKS_SANITIZE}
                                                      -fno-omit-frame-pointer)
  target_link_options(deltaworks_options INTERFACE -fsanitize=${DELTAWORKS_SANITIZE})
endif()
