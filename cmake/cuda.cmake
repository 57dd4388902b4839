# Whether the CUDA engine is built, and the compiler for it. DELTAWORKS_CUDA decides where it is given;
# else the engine is built where there is nvcc 13 or newer, the oldest that it is tested with. A part
# of another project and a cross build are without it unless they ask.
set(default OFF)
if(NOT DEFINED DELTAWORKS_CUDA AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CROSSCOMPILING)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      set(default ON)
    endif()
  endif()
endif()
option(DELTAWORKS_CUDA "Build the CUDA engine, the forward for cards from 8.0 on; needs nvcc" ${default})

if(NOT DELTAWORKS_CUDA)
  message(STATUS
    "CUDA engine: not built. DELTAWORKS_CUDA=ON asks for it, CUDACXX names nvcc (13 or newer)")
  return()
endif()
enable_language(CUDA)
# CMake 3.25 does not know how this compiler is asked for C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit REQUIRED)
set(DELTAWORKS_CUDA_ARCHITECTURES "80-real;90a-real;80-virtual" CACHE STRING
  "Machine code and PTX that kernels are compiled to; one alone compiles faster")
message(STATUS "CUDA engine: built by ${CMAKE_CUDA_COMPILER}, ${CMAKE_CUDA_COMPILER_VERSION}")
