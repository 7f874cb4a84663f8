# UCX comes from the pinned libucx wheel, or from AXON_UCX_ROOT if that is set; never from the host's default paths.
set(AXON_UCX_ROOT "$ENV{AXON_UCX_ROOT}" CACHE PATH "Prefix of a UCX installation to use instead of the libucx wheel")

set(ucx_root "${AXON_UCX_ROOT}")
if(NOT ucx_root)
  execute_process(
    COMMAND "${AXON_PYTHON}" -c "import importlib.util as u; print(u.find_spec('libucx').submodule_search_locations[0])"
    OUTPUT_VARIABLE ucx_root
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endif()
if(NOT ucx_root)
  message(FATAL_ERROR "UCX is missing: ${AXON_PYTHON} has no package libucx. Install libucx-cu13==1.22.0 for it "
                      "(requirements/ has the hashes), or set AXON_UCX_ROOT to the prefix of your own UCX.")
endif()

find_package(ucx 1.20 CONFIG QUIET PATHS "${ucx_root}/lib/cmake/ucx" NO_DEFAULT_PATH)
if(NOT ucx_FOUND)
  message(FATAL_ERROR "No UCX 1.20 or newer under ${ucx_root}: lib/cmake/ucx/ucx-config.cmake is missing or older")
endif()
message(STATUS "UCX ${ucx_VERSION} from ${ucx_root}")

# Programs of the build folder load this UCX.
list(APPEND CMAKE_BUILD_RPATH "${ucx_root}/lib")
