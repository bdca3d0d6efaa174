# Checks that includes follow the arrows between the folders:
#   tools, bench, tests -> runtime -> predictor, cache, layout -> io; runtime/kernels is a leaf;
# and that a source includes its own header first, so that compiling it compiles the header alone.
# Run as: cmake -DROOT=<source folder> -P structure_test.cmake

cmake_minimum_required(VERSION 3.25)

# What each folder may include besides itself. A header in place of a folder allows that one only.
set(allowed_io)
set(allowed_io/suite io)
set(allowed_cache io)
set(allowed_layout io)
set(allowed_runtime/kernels layout/weight_type.h)
set(allowed_runtime/tokenizer layout io)
set(allowed_predictor layout io runtime/kernels)
set(allowed_runtime predictor cache layout io runtime/kernels runtime/tokenizer)
set(allowed_tools runtime io/suite ${allowed_runtime})
set(allowed_bench runtime io/suite ${allowed_runtime})
set(allowed_tests bench tools runtime io/suite ${allowed_runtime})
set(allowed_tests/fuzz tests runtime ${allowed_runtime})

# Folders that the decoder is linked from. Of layout they may use only what its library for the
# decoder holds, and not the importers and other offline parts.
set(online cache predictor runtime runtime/kernels runtime/tokenizer)
set(online_without_source byte_io counter_rng)  # headers of that library that have no source beside them

set(folders io io/suite cache layout predictor runtime runtime/kernels runtime/tokenizer tools bench tests
            tests/fuzz)

# Stems of the sources of sluice_layout, the library for the decoder.
file(READ ${ROOT}/layout/CMakeLists.txt layout_list)
if(NOT layout_list MATCHES "add_library\\(sluice_layout[ \n]([^)]*)\\)")
  message(FATAL_ERROR "layout/CMakeLists.txt: no library sluice_layout")
endif()
string(REGEX MATCHALL "[a-z0-9_]+\\.cc" layout_sources "${CMAKE_MATCH_1}")
list(TRANSFORM layout_sources REPLACE "\\.cc$" "" OUTPUT_VARIABLE online_stems)
list(APPEND online_stems ${online_without_source})

set(violations "")
set(n_includes 0)

# Notes a violation if `file` of `folder` may not include `included`.
function(check_include folder file included)
  get_filename_component(to ${included} DIRECTORY)
  get_filename_component(stem ${included} NAME_WE)
  get_filename_component(own_stem ${file} NAME_WE)
  if(NOT to STREQUAL folder AND NOT to IN_LIST allowed_${folder}
     AND NOT included IN_LIST allowed_${folder})
    set(violations "${violations}${folder}/${file}: may not include ${included}\n" PARENT_SCOPE)
  elseif(to STREQUAL "layout" AND NOT stem IN_LIST online_stems
         AND (folder IN_LIST online OR (folder STREQUAL "layout" AND own_stem IN_LIST online_stems)))
    set(violations "${violations}${folder}/${file}: ${included} is of the offline part of layout\n"
        PARENT_SCOPE)
  endif()
endfunction()

# Notes a violation if `file` of `folder` has a header of its name and includes another one first.
function(check_own_header folder file)
  string(REGEX REPLACE "\\.cc$" ".h" header ${file})
  if(NOT header STREQUAL file AND EXISTS ${ROOT}/${folder}/${header})
    file(STRINGS ${ROOT}/${folder}/${file} first REGEX "^#include" LIMIT_COUNT 1)
    if(NOT first STREQUAL "#include \"${folder}/${header}\"")
      set(violations "${violations}${folder}/${file}: does not include ${header} first\n"
          PARENT_SCOPE)
    endif()
  endif()
endfunction()

foreach(folder ${folders})
  file(GLOB files RELATIVE ${ROOT}/${folder} ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cc)
  foreach(file ${files})
    check_own_header(${folder} ${file})
    file(STRINGS ${ROOT}/${folder}/${file} lines REGEX "^#include \"")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" included "${line}")
      get_filename_component(to ${included} DIRECTORY)
      if(to IN_LIST folders)  # else a library of the system
        check_include(${folder} ${file} ${included})
        math(EXPR n_includes "${n_includes} + 1")
      endif()
    endforeach()
  endforeach()
endforeach()

if(n_includes EQUAL 0)
  message(FATAL_ERROR "${ROOT}: no include was found")
endif()
if(violations)
  message(FATAL_ERROR "Includes that do not follow the rules:\n${violations}")
endif()
message(STATUS "${n_includes} includes follow the rules")
