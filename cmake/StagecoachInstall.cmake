# `cmake --install`, find_package(Stagecoach) and pkg-config. Each target declares what it installs: see stagecoach_library() and
# tools/CMakeLists.txt. There are three components (docs/development.md): runtime (the program), development (headers, archives and what finds them) and
# cuda (the CUDA backend, where it is built).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecoach)
install(EXPORT StagecoachTargets NAMESPACE Stagecoach:: DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file(
  cmake/StagecoachConfig.cmake.in "${PROJECT_BINARY_DIR}/StagecoachConfig.cmake"
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/StagecoachConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)  # docs/development.md has the rules
install(FILES
  "${PROJECT_BINARY_DIR}/StagecoachConfig.cmake"
  "${PROJECT_BINARY_DIR}/StagecoachConfigVersion.cmake"
  cmake/FindOneDNN.cmake
  cmake/FindSentencePiece.cmake
  DESTINATION ${package_dir} COMPONENT development)

set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix "/prefix/${pc_dir}" "/prefix")
configure_file(cmake/stagecoach.pc.in stagecoach.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/stagecoach.pc" DESTINATION ${pc_dir} COMPONENT development)
