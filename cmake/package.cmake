# The C++ library: cmake --install BUILD --component library --prefix PREFIX. Installs the headers that are listed here;
# all other headers of csrc/ are internal.
include(CMakePackageConfigHelpers)

file(STRINGS setup.py version REGEX "^VERSION = ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" version "${version}")

set(public_headers
    axon/announced.hpp
    axon/axon.hpp
    axon/call.hpp
    axon/condition.hpp
    axon/generator.hpp
    axon/invocation.hpp
    axon/mailbox.hpp
    axon/message.hpp
    axon/one_sided.hpp
    axon/outbox.hpp
    axon/peer.hpp
    axon/pool.hpp
    axon/publication.hpp
    axon/runtime.hpp
    axon/stream.hpp
    base/condition_counts.hpp
    base/data_type.hpp
    base/status.hpp
    memory/host_buffer.hpp
    memory/mappable_memory.hpp
    memory/owner.hpp
    rpc/core/handshake/counts.hpp
    rpc/core/options.hpp
    rpc/core/values.hpp)
foreach(header IN LISTS public_headers)
  get_filename_component(folder "${header}" DIRECTORY)
  string(REGEX REPLACE "^axon$" "" folder "${folder}")
  install(FILES "csrc/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/axon/${folder}" COMPONENT library)
endforeach()

# Kernels of users include it, with or without the rest.
install(FILES csrc/axon/condition.cuh csrc/kernels/device.cuh DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/axon"
        COMPONENT library)
install(FILES csrc/kernels/device.cuh DESTINATION torch_axon/include/axon COMPONENT python)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/axon")
set_target_properties(axon_core PROPERTIES EXPORT_NAME axon OUTPUT_NAME axon)
install(
  TARGETS axon_core
  EXPORT axon
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
install(EXPORT axon NAMESPACE axon:: FILE axon-targets.cmake DESTINATION "${package_folder}" COMPONENT library)
write_basic_package_version_file(
  "${CMAKE_BINARY_DIR}/axon-config-version.cmake" VERSION "${version}" COMPATIBILITY SameMinorVersion)
install(FILES cmake/axon-config.cmake "${CMAKE_BINARY_DIR}/axon-config-version.cmake"
        DESTINATION "${package_folder}" COMPONENT library)
