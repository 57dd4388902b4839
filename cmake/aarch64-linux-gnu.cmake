# Toolchain of Debian's g++-aarch64-linux-gnu; tests run under qemu-user:
#
#   cmake -B build/aarch64 --toolchain cmake/aarch64-linux-gnu.cmake -DHIGHWAY_INCLUDE_DIR=FOLDER
#
# FOLDER holds Highway's headers and no others, such as a link hwy to those of the host: they are
# the same for every processor, but the host's include folder as a whole is not.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
