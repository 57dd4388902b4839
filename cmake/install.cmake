# The installed library: headers, libdeltaworks, the CMake package deltaworks::deltaworks and the
# pkg-config module deltaworks. All paths in it are relative, so the folder may be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltaworks)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/deltaworksConfig.cmake.in ${PROJECT_BINARY_DIR}/deltaworksConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/deltaworksConfigVersion.cmake COMPATIBILITY SameMinorVersion)

file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
cmake_path(APPEND pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
if(DELTAWORKS_CUDA)
  set(pc_cudart "-lcudart_static -ldl -lrt ")
endif()
configure_file(cmake/deltaworks.pc.in ${PROJECT_BINARY_DIR}/deltaworks.pc @ONLY)

install(TARGETS deltaworks EXPORT deltaworks INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/deltaworks DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT deltaworks
  NAMESPACE deltaworks:: FILE deltaworksTargets.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/deltaworksConfig.cmake
              ${PROJECT_BINARY_DIR}/deltaworksConfigVersion.cmake
        DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/deltaworks.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
