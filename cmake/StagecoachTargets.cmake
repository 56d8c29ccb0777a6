# The compile flags of every target of the project, in one place.
set(STAGECOACH_TEST_SHARDS "" CACHE STRING "Run each test program in so many processes; empty: in one for each test")

# Compilers by which .ci/run compiles everything without a warning. Others may warn about what these accept, which must not keep
# anyone from building.
set(warnings_as_errors OFF)
if("${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" MATCHES "^(GNU 12|Clang 14)\\.")
  if(NOT STAGECOACH_HAS_CUDA OR CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.0\\.")
    set(warnings_as_errors ON)
  endif()
endif()
option(STAGECOACH_WARNINGS_AS_ERRORS "Stop the build at a compiler's warning" ${warnings_as_errors})
set(fatal "")
set(fatal_for_nvcc "")
set(fatal_for_host "")
if(STAGECOACH_WARNINGS_AS_ERRORS)
  set(fatal -Werror)
  set(fatal_for_nvcc "--Werror=all-warnings")
  set(fatal_for_host ",-Werror")
endif()

add_library(stagecoach_flags INTERFACE)
target_compile_features(stagecoach_flags INTERFACE cxx_std_20)
target_compile_options(stagecoach_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers ${fatal}
  # g++ 12 sees overlaps in the copies of std::string at -O3 that are not there (GCC's bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)

# Those of what nvcc compiles.
add_library(stagecoach_cuda_flags INTERFACE)
target_compile_options(stagecoach_cuda_flags INTERFACE
  ${fatal_for_nvcc} "SHELL:-Xcompiler -Wall,-Wextra,-Wshadow${fatal_for_host}")

# stagecoach_library(NAME name [SOURCES ...] HEADERS ... [DEPS ...] [PRIVATE_DEPS ...])
# One library per folder: target stagecoach_<name>, alias Stagecoach::<name>. Headers are included by their path from
# the root of the tree ("base/text/json.h"). HEADERS are public: they are installed, and each is compiled alone by the target
# all_verify_interface_header_sets. The others stand among the SOURCES.
function(stagecoach_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target stagecoach_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(Stagecoach::${ARG_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${ARG_NAME} POSITION_INDEPENDENT_CODE ON
    VERIFY_INTERFACE_HEADER_SETS ON LINKER_LANGUAGE CXX)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HEADERS})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:stagecoach_flags>)
  # Nothing here is faster with -O3, which takes a sixth longer to compile; kernels and setup (StagecoachBatches) have levels of
  # their own.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O2>)
  install(TARGETS ${target} EXPORT StagecoachTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stagecoach COMPONENT development)
endfunction()

# stagecoach_embed(TARGET target FILE file HEADER header VARIABLE namespace::name)
# Makes a file of the source tree, such as a page's script, the text of `const char name[]`, which the header declares.
function(stagecoach_embed)
  cmake_parse_arguments(ARG "" "TARGET;FILE;HEADER;VARIABLE" "" ${ARGN})
  cmake_path(ABSOLUTE_PATH ARG_FILE OUTPUT_VARIABLE path)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(READ "${path}" text)
  string(REGEX MATCH "^(.*)::([^:]+)$" match "${ARG_VARIABLE}")
  set(source "${CMAKE_CURRENT_BINARY_DIR}/embedded/${ARG_FILE}.cc")
  file(WRITE "${source}.new" "#include \"${ARG_HEADER}\"\nnamespace ${CMAKE_MATCH_1} {\nconst char ${CMAKE_MATCH_2}[] = R\"embedded(\n${text})embedded\";\n}\n")
  file(COPY_FILE "${source}.new" "${source}" ONLY_IF_DIFFERENT)
  target_sources(${ARG_TARGET} PRIVATE "${source}")
endfunction()

# What tests write lies in the tree that they were built in: two builds may be tested at once. gtest 1.12 wants the last slash.
set(STAGECOACH_TEST_ENVIRONMENT "TEST_TMPDIR=${PROJECT_BINARY_DIR}/tmp/")
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/tmp")

# Compiling tests takes longer than running them, most of all for sanitizers. Undefined behavior is checked in the product's sources
# alone: in tests that would take a third of the time.
set(STAGECOACH_TEST_OPTIONS $<IF:$<CONFIG:Release>,-O1,-O0> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=undefined>)

# Builds that are slow to run leave out tests: GTEST_FILTER from a file with patterns of their names, one a line.
set(STAGECOACH_TESTS_LEFT_OUT "" CACHE FILEPATH "A list of tests that are not run; empty: all are")
if(STAGECOACH_TESTS_LEFT_OUT)
  file(STRINGS "${STAGECOACH_TESTS_LEFT_OUT}" left_out REGEX "^[^#]")
  list(JOIN left_out ":" left_out)
  list(APPEND STAGECOACH_TEST_ENVIRONMENT "GTEST_FILTER=-${left_out}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${STAGECOACH_TESTS_LEFT_OUT}")
endif()

# stagecoach_test_objects(NAME name SOURCES ... DEPS ...)
# Sources that several test programs share, compiled once: those have it among their DEPS.
function(stagecoach_test_objects)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(${ARG_NAME} OBJECT EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PUBLIC ${ARG_DEPS} GTest::gmock GTest::gtest PRIVATE stagecoach_flags)
  target_compile_options(${ARG_NAME} PRIVATE ${STAGECOACH_TEST_OPTIONS})
endfunction()

# stagecoach_test(NAME name SOURCES ... DEPS ... [LABEL unit|dist|gpu|slow|emulated] [THREADS])
# One test program; every TEST in it is a CTest test, in a process of its own, or all run in STAGECOACH_TEST_SHARDS processes.
# THREADS: it is among those that ThreadSanitizer runs. Those are the programs in which threads share something that the others
# have not; tests labeled emulated run on emulated GPUs, too slowly for it.
function(stagecoach_test)
  cmake_parse_arguments(ARG "THREADS" "NAME;LABEL" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main stagecoach_flags)
  target_compile_options(${ARG_NAME} PRIVATE ${STAGECOACH_TEST_OPTIONS})
  if(STAGECOACH_ONLY_THREAD_TESTS AND NOT ARG_THREADS)
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  if(STAGECOACH_TEST_SHARDS)
    math(EXPR last "${STAGECOACH_TEST_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${ARG_NAME}.${shard} COMMAND ${ARG_NAME})
      set_tests_properties(${ARG_NAME}.${shard} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 1200 ENVIRONMENT
        "${STAGECOACH_TEST_ENVIRONMENT};GTEST_TOTAL_SHARDS=${STAGECOACH_TEST_SHARDS};GTEST_SHARD_INDEX=${shard}")
    endforeach()
    return()
  endif()
  include(GoogleTest)
  gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 600 ENVIRONMENT "${STAGECOACH_TEST_ENVIRONMENT}")
endfunction()
