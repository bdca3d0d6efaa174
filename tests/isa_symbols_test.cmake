# Checks that the kernel files compiled for newer CPUs emit nothing but their table: an inline
# function or template instance in them could be what the linker picks for the whole program, which
# then dies on an older CPU. Run as: cmake -DNM=... -DLIBRARY=... -P isa_symbols_test.cmake
execute_process(COMMAND ${NM} -A -C --defined-only ${LIBRARY}
  OUTPUT_VARIABLE symbols RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "nm failed on ${LIBRARY}")
endif()
string(REPLACE ";" "," symbols "${symbols}")
string(REGEX REPLACE "\n" ";" symbols "${symbols}")

set(tables 0)
foreach(symbol IN LISTS symbols)
  if(NOT symbol MATCHES ":(avx2|avx512_vnni)\\.cc\\.o[bj]*:" OR
     symbol MATCHES " DW\\.ref\\.")  # a pointer for exception tables, not code
    continue()
  endif()
  if(symbol MATCHES " T sluice::[A-Za-z0-9]+Kernels\\(\\)$")
    math(EXPR tables "${tables} + 1")
  elseif(symbol MATCHES "^[^ ]* [A-Zu] " OR symbol MATCHES "_GLOBAL__sub_I")
    message(SEND_ERROR "may run on a CPU without its instructions: ${symbol}")
  endif()
endforeach()
if(NOT tables EQUAL 2)
  message(SEND_ERROR "expected the tables of 2 ISA files, found ${tables}")
endif()
