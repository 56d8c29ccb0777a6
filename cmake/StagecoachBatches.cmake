# The sources of a target in a folder, with those in the folders below it, are compiled together, in a batch, which parses headers
# and instantiates templates once for all of them: in a quarter of the time. Off, each is compiled alone: it shows that it includes
# what it needs, and a change of one source is compiled soonest.
#
# CMake's own unity build (UNITY_BUILD) names sources by their absolute paths, by which ccache takes each clone for another program;
# these batches name them from the root of the tree.
option(STAGECOACH_UNITY_BUILD "Compile sources in batches" ON)

# Whether the target compiles a source without options of its own.
function(stagecoach_is_batched result target source)
  set(${result} OFF PARENT_SCOPE)
  if(NOT source MATCHES "\\.cc$" OR source MATCHES "^\\$<")
    return()
  endif()
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS)
    get_source_file_property(value "${source}" TARGET_DIRECTORY ${target} ${property})
    if(value)
      return()
    endif()
  endforeach()
  set(${result} ON PARENT_SCOPE)
endfunction()

# Folders of a target whose code is run once per run or per file, such as readers of files, planning's reports, and what sets up a
# run: a release compiles their batches in two thirds of the time, with -O1.
define_property(TARGET PROPERTY STAGECOACH_SETUP_FOLDERS)

# Small folders of a target that share a batch, which is named after the first: groups such as "ir+verify".
define_property(TARGET PROPERTY STAGECOACH_JOINED_FOLDERS)

# The batch of a source, in place of its folder: for those that include a library's large header, which is then parsed once.
define_property(SOURCE PROPERTY STAGECOACH_BATCH)

# Replaces the C++ sources of a target by one file for each batch, which includes them.
function(stagecoach_batch_target target)
  get_target_property(sources ${target} SOURCES)
  if(NOT sources)
    return()
  endif()
  get_target_property(target_folder ${target} SOURCE_DIR)
  get_target_property(binary_folder ${target} BINARY_DIR)
  get_target_property(setup_folders ${target} STAGECOACH_SETUP_FOLDERS)
  get_target_property(joined_folders ${target} STAGECOACH_JOINED_FOLDERS)
  foreach(group IN LISTS joined_folders)
    string(REPLACE "+" ";" group "${group}")
    list(GET group 0 first)
    foreach(folder IN LISTS group)
      set("batch_of_${folder}" "${first}")
    endforeach()
  endforeach()
  set(compiled "")  # what takes the place of the sources
  set(folders "")   # of those that are batched: in_<folder> lists them
  foreach(source IN LISTS sources)
    if(NOT source MATCHES "^\\$<")
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${target_folder}")
    endif()
    stagecoach_is_batched(is_batched ${target} "${source}")
    if(is_batched)
      get_source_file_property(folder "${source}" TARGET_DIRECTORY ${target} STAGECOACH_BATCH)
      if(NOT folder)
        cmake_path(GET source PARENT_PATH folder)
        cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${target_folder}")
        string(REGEX REPLACE "/.*" "" folder "${folder}")
        if(DEFINED "batch_of_${folder}")
          set(folder "${batch_of_${folder}}")
        endif()
      endif()
      list(APPEND folders "${folder}")
      list(APPEND "in_${folder}" "${source}")
    else()
      list(APPEND compiled "${source}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH "in_${folder}" length)
    if(length EQUAL 1)
      list(APPEND compiled ${in_${folder}})
      continue()
    endif()
    set(text "")
    foreach(source IN LISTS "in_${folder}")
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
      string(APPEND text "#include \"${source}\"\n")
    endforeach()
    set(file "${binary_folder}/batches/${folder}/${target}.cc")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)  # written only if it changes
    list(APPEND compiled "${file}")
    if(folder IN_LIST setup_folders)
      set_source_files_properties("${file}" TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
    endif()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${compiled})
endfunction()

# All targets of a folder and of those below it.
function(stagecoach_batch_folder folder)
  get_property(subfolders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS subfolders)
    stagecoach_batch_folder("${subfolder}")
  endforeach()
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "LIBRARY$|^EXECUTABLE$" AND NOT type STREQUAL INTERFACE_LIBRARY)
      stagecoach_batch_target(${target})
    endif()
  endforeach()
endfunction()

if(STAGECOACH_UNITY_BUILD)
  stagecoach_batch_folder("${PROJECT_SOURCE_DIR}")
endif()
