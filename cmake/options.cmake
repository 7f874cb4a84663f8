# axon_options: the compile options of all our targets.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
  message(FATAL_ERROR "g++ ${CMAKE_CXX_COMPILER_VERSION} is too old for C++20 coroutines: install g++ 11 or newer")
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Threads REQUIRED)

add_library(axon_options INTERFACE)
# g++ 12 reports false overlaps in std::string's operator+ and false unset members in std::variant (GCC bugs 105651,
# 105562).
target_compile_options(
  axon_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror>
                         $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict -Wno-maybe-uninitialized>)
target_link_libraries(axon_options INTERFACE Threads::Threads)

if(AXON_SANITIZE)
  # Reports have frames and line numbers, and the first finding of any kind ends the test.
  set(sanitize_flags -fsanitize=${AXON_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_compile_options(axon_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${sanitize_flags}>)
  # clang 14 cannot assemble a coroutine whose type this checks.
  target_compile_options(axon_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  # Silences warnings about fences, which the thread sanitizer does not see. Torch's headers have some, and so does
  # completion_hook.cpp, where a fence orders Python's own flags.
  target_compile_options(axon_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  target_link_options(axon_options INTERFACE -fsanitize=${AXON_SANITIZE})
endif()
