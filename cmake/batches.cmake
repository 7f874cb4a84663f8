# Compiles the files of a folder in batches: most of a file's time goes into its headers, up to five seconds for those
# of torch and pybind11 alone. Without batches, compile_commands.json has an entry for each file.
option(AXON_BATCHES "Compile the files of a folder in batches; OFF for tools that look at single files" ON)

# Folders are those below csrc/. A batch has up to `size` files of one folder, its subfolders included.
function(axon_compile_in_batches target size)
  if(NOT AXON_BATCHES)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELOCATABLE ON)
  # g++ takes the files of a batch for headers, whose types should have external linkage.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  foreach(folder IN LISTS ARGN)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "/csrc/${folder}/.*\\.cpp$")
    string(REPLACE "/" "_" name "${folder}")
    set(number 0)
    foreach(source IN LISTS sources)
      math(EXPR batch "${number} / ${size}")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${name}_${batch}")
      math(EXPR number "${number} + 1")
    endforeach()
  endforeach()
endfunction()
