# find_package(axon) defines the target axon::axon. It links UCX, which is searched in AXON_UCX_ROOT (a variable of
# CMake or of the environment), or else with find_package(ucx).
include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET ucx::ucp)
  set(axon_ucx_root "${AXON_UCX_ROOT}")
  if(NOT axon_ucx_root)
    set(axon_ucx_root "$ENV{AXON_UCX_ROOT}")
  endif()
  if(axon_ucx_root)
    find_package(ucx 1.20 CONFIG QUIET PATHS "${axon_ucx_root}" NO_DEFAULT_PATH)
  else()
    find_package(ucx 1.20 CONFIG QUIET)
  endif()
  if(NOT ucx_FOUND)
    set(axon_FOUND FALSE)
    set(axon_NOT_FOUND_MESSAGE
        "UCX 1.20 or newer is missing (AXON_UCX_ROOT='${axon_ucx_root}'): set AXON_UCX_ROOT or CMAKE_PREFIX_PATH to the \
prefix of one, such as the folder of the Python package libucx.")
    return()
  endif()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/axon-targets.cmake")
