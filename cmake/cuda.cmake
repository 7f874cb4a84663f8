# nvcc and cudart come from the pinned wheels in AXON_CUDA_ROOT, never from the host, whatever PATH or CUDA_PATH
# contain.
set(AXON_CUDA_ROOT "$ENV{AXON_CUDA_ROOT}" CACHE PATH "Folder nvidia/cu13 of the wheels in requirements/cuda.txt")

foreach(part bin/nvcc bin/ptxas nvvm/bin/cicc include/cuda_runtime.h include/crt/host_config.h include/cccl/cuda/atomic
             lib/libcudart_static.a)
  if(NOT AXON_CUDA_ROOT OR NOT EXISTS "${AXON_CUDA_ROOT}/${part}")
    message(FATAL_ERROR "CUDA's ${part} is missing: AXON_CUDA_ROOT='${AXON_CUDA_ROOT}'. Install requirements/cuda.txt "
                        "(pip install --target) and point AXON_CUDA_ROOT at its nvidia/cu13, or build with AXON_CUDA=0.")
  endif()
endforeach()

# nvcc reads these variables, so they could make it use the host's files.
foreach(name NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS CUDA_PATH CUDA_HOME CUDACXX CUDAFLAGS)
  unset(ENV{${name}})
endforeach()
set(CMAKE_CUDA_COMPILER "${AXON_CUDA_ROOT}/bin/nvcc")
set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures to compile for")
set(CMAKE_CUDA_FLAGS_INIT "-L${AXON_CUDA_ROOT}/lib")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
enable_language(CUDA)

# Static, so that the core loads on machines without CUDA: cudart opens the driver only at its first call.
add_library(axon_cudart INTERFACE)
target_include_directories(axon_cudart SYSTEM INTERFACE "${AXON_CUDA_ROOT}/include")
target_link_libraries(axon_cudart INTERFACE "${AXON_CUDA_ROOT}/lib/libcudart_static.a" Threads::Threads dl rt)
target_compile_options(
  axon_cudart INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
message(STATUS "nvcc ${CMAKE_CUDA_COMPILER_VERSION} from ${AXON_CUDA_ROOT}")
