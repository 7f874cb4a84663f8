# Binaries for a host with GPUs where nothing is installed: cudart, GoogleTest and libstdc++ linked in, UCX left out (no
# device code needs it).
#
#   cmake … -DAXON_PORTABLE_TESTS=ON && cmake --build BUILD --target portable     → BUILD/portable, to
#   become bin/ of the bundle that benchmarks/cuda/run_on_gpu_host.sh takes
file(GLOB device_test_sources CONFIGURE_DEPENDS tests/cpp/device/*_test.cpp)
add_executable(device_test ${device_test_sources})
target_link_libraries(device_test PRIVATE axon_test_support)

add_custom_target(portable DEPENDS device_test device_bench)
foreach(name device_test device_bench)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--as-needed -s)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/portable")
endforeach()
