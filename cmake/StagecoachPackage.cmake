# Debian packages: `cpack --preset package`, or `cpack` in a build folder. tools/package/check makes and tries them. The component cuda is in
# none, so none depends on NVIDIA's.

# What each package has in /usr/share/doc, beside what its component installs.
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/package")
configure_file(cmake/copyright.in package/copyright @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS CHANGELOG.md)
execute_process(COMMAND gzip -9n INPUT_FILE "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  OUTPUT_FILE "${PROJECT_BINARY_DIR}/package/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)

function(stagecoach_package component name section depends description)
  string(TOUPPER ${component} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${description}" PARENT_SCOPE)
  install(FILES "${PROJECT_BINARY_DIR}/package/copyright" "${PROJECT_BINARY_DIR}/package/changelog.gz"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component})
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
endfunction()

stagecoach_package(runtime stagecoach science "" "${PROJECT_DESCRIPTION}
The program stagecoach plans how to cut a network into stages, trains it over
threads, processes and hosts, and simulates schedules.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS dataset-fashion-mnist)

stagecoach_package(development libstagecoach-dev libdevel "g++, libabsl-dev, libdnnl-dev, libgloo-dev, libjpeg-dev, \
libpcre2-dev, libpng-dev, libsentencepiece-dev, libxxhash-dev, nlohmann-json3-dev, pkg-config, zlib1g-dev"
"${PROJECT_DESCRIPTION} (development)
Headers and static libraries, for programs that define models and train them
in C++, with what CMake and pkg-config find them by.")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGE_CONTACT "Stagecoach maintainers <maintainers@stagecoach.example>" CACHE STRING
    "Whom the packages name as their maintainer")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
include(CPack)
