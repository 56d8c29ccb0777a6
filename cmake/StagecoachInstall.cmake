# `cmake --install` and find_package(Stagecoach). Each target declares what it installs: see
# stagecoach_library() and tools/CMakeLists.txt.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecoach)
install(EXPORT StagecoachTargets NAMESPACE Stagecoach:: DESTINATION ${package_dir})

configure_package_config_file(
  cmake/StagecoachConfig.cmake.in "${PROJECT_BINARY_DIR}/StagecoachConfig.cmake"
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/StagecoachConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/StagecoachConfig.cmake"
  "${PROJECT_BINARY_DIR}/StagecoachConfigVersion.cmake"
  cmake/FindOneDNN.cmake
  cmake/FindSentencePiece.cmake
  DESTINATION ${package_dir})
