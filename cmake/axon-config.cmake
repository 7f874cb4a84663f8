# find_package(axon) defines the target axon::axon. A program loads UCX if its settings (AXON_TRANSPORTS) choose it.
# AXON_UCX_ROOT, a variable of CMake or of the environment, says where the program finds it. Otherwise the dynamic loader
# searches in its usual folders.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/axon-targets.cmake")

set(axon_ucx_root "${AXON_UCX_ROOT}")
if(NOT axon_ucx_root)
  set(axon_ucx_root "$ENV{AXON_UCX_ROOT}")
endif()
if(axon_ucx_root)
  target_link_options(axon::axon INTERFACE "LINKER:-rpath,${axon_ucx_root}/lib")
endif()
