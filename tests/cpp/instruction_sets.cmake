# Read by ctest when it starts: registers the tests of the CPU engine, suites Cpu*, once for every
# instruction set that the kernel of the operating system reports, as CpuEngine.Name.AVX2. It asks
# the system and not the library, so a library that fails to see a set fails its tests.
file(STRINGS /proc/cpuinfo cpuinfo REGEX "^(flags|Features)")
list(GET cpuinfo 0 flags)
string(APPEND flags " ")
set(isas "")
if(flags MATCHES "^Features")
  list(APPEND isas NEON)
endif()
if(flags MATCHES " sse4_2 " AND flags MATCHES " pclmulqdq ")
  list(APPEND isas SSE4)
endif()
if(flags MATCHES " avx2 " AND flags MATCHES " fma " AND flags MATCHES " bmi2 " AND
   flags MATCHES " f16c ")
  list(APPEND isas AVX2)
endif()
if(flags MATCHES " avx512f " AND flags MATCHES " avx512vl " AND flags MATCHES " avx512bw " AND
   flags MATCHES " avx512dq " AND flags MATCHES " avx512cd ")
  list(APPEND isas AVX512)
endif()

set(list_failed 1)
if(EXISTS "${binary}")
  execute_process(COMMAND "${binary}" --gtest_list_tests --gtest_filter=Cpu*
    OUTPUT_VARIABLE names RESULT_VARIABLE list_failed)
endif()
if(list_failed OR isas STREQUAL "")
  add_test(CpuEngine_NOT_BUILT "${binary}_NOT_BUILT")
else()
  string(REPLACE "\n" ";" names "${names}")
  foreach(line IN LISTS names)
    if(line MATCHES "^([A-Za-z0-9]+)\\.$")
      set(suite "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^  ([A-Za-z0-9_/]+)( +#.*)?$")
      foreach(isa IN LISTS isas)
        set(test "${suite}.${CMAKE_MATCH_1}")
        add_test("${test}.${isa}" "${binary}" "--gtest_filter=${test}")
        set_tests_properties("${test}.${isa}" PROPERTIES
          ENVIRONMENT "DELTAWORKS_ISA=${isa}" TIMEOUT 300)
      endforeach()
    endif()
  endforeach()
endif()
