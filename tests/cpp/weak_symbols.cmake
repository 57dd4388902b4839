# Fails if an object defines a weak symbol (nm types V, W, u): cmake -DNM=... -DOBJECTS=... -P this.
# The kernels are compiled once per instruction set; of a weak symbol the linker would keep one copy
# for all of them, perhaps that of a set which the processor lacks.
set(weak "")
list(LENGTH OBJECTS count)
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" --defined-only --demangle "${object}"
    OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [VWu] [^\n]*" found "${symbols}")
  if(NOT symbols MATCHES " [Tt] ")
    message(FATAL_ERROR "${object} defines no function")
  endif()
  foreach(symbol IN LISTS found)
    string(APPEND weak "\n  weak symbol ${symbol} in ${object}")
  endforeach()
endforeach()
if(count EQUAL 0 OR NOT weak STREQUAL "")
  message(FATAL_ERROR "${count} objects${weak}")
endif()
