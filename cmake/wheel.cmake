# What the wheel holds besides the Python package: included by the top-level CMakeLists.txt under
# scikit-build-core (pyproject.toml), after the targets are there.

# A wheel cannot hold links: the library is one file, under the name that is loaded.
install(TARGETS deltaworks LIBRARY DESTINATION deltaworks/lib NAMELINK_SKIP)

if(DELTAWORKS_TORCH)
  install(TARGETS deltaworks_torch LIBRARY DESTINATION deltaworks/lib)
endif()

# Messages name source files; where these lay during the build is nobody's concern.
target_compile_options(deltaworks_options INTERFACE
  "-ffile-prefix-map=${DELTAWORKS_TORCH_ROOT}/include=torch"
  "-ffile-prefix-map=${PROJECT_SOURCE_DIR}=deltaworks")
