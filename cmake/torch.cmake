# The torch extension. Does not use find_package(Torch), which searches the host for a CUDA toolkit.
set(Python_EXECUTABLE "${AXON_PYTHON}")
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE torch_root
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET)
if(NOT EXISTS "${torch_root}/include/torch/csrc/distributed/c10d/Backend.hpp")
  message(FATAL_ERROR "torch is missing: ${Python_EXECUTABLE} has no package torch with its C++ headers")
endif()

# torch's include folder contains its own pybind11. It is searched first (BEFORE), since another version could not share
# types with torch.
add_library(axon_torch INTERFACE)
target_include_directories(axon_torch SYSTEM BEFORE INTERFACE "${torch_root}/include"
                                                              "${torch_root}/include/torch/csrc/api/include")
target_compile_definitions(axon_torch INTERFACE USE_DISTRIBUTED USE_C10D)
foreach(library c10 torch_cpu torch torch_python)
  target_link_libraries(axon_torch INTERFACE "${torch_root}/lib/lib${library}.so")
endforeach()

# `import torch` loads torch's libraries before this one. RPATH is where this one finds your own UCX; the wheel's folder is
# found by Python (torch_axon/_native.py).
function(axon_add_torch_extension name)
  python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  target_compile_definitions(${name} PRIVATE TORCH_EXTENSION_NAME=${name})
  target_link_libraries(${name} PRIVATE axon_torch axon_core $<TARGET_NAME_IF_EXISTS:axon_cuda>)
  target_precompile_headers(${name} PRIVATE <torch/csrc/distributed/c10d/Backend.hpp> <torch/csrc/utils/pybind.h>)
  if(AXON_UCX_ROOT)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "${AXON_UCX_ROOT}/lib")
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION torch_axon COMPONENT python)
endfunction()
