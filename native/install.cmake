# What is installed: library, headers, and what lets other programs find both: the CMake package microgpt_cuda and the
# pkg-config module of that name.  All of them find the rest from where they lie, so that a prefix may be moved, as a wheel is.

include(CMakePackageConfigHelpers)

# The Python package is a prefix of its own: andrea/include and andrea/lib in the wheel.
if(SKBUILD)
  set(prefix andrea)
  set(include_folder include)
  set(library_folder lib)
else()
  set(prefix .)
  set(include_folder ${CMAKE_INSTALL_INCLUDEDIR})
  set(library_folder ${CMAKE_INSTALL_LIBDIR})
endif()

# A folder as seen from the prefix, unless it is an absolute one.
function(microgpt_below_prefix result folder)
  if(NOT IS_ABSOLUTE "${folder}" AND NOT prefix STREQUAL ".")
    set(folder ${prefix}/${folder})
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()
microgpt_below_prefix(include_destination "${include_folder}")
microgpt_below_prefix(library_destination "${library_folder}")

install(TARGETS microgpt_cuda EXPORT microgpt_cuda LIBRARY DESTINATION ${library_destination}
                                                   RUNTIME DESTINATION ${library_destination}
                                                   INCLUDES DESTINATION ${include_destination})
install(DIRECTORY include/ DESTINATION ${include_destination})

# ---- find_package(microgpt_cuda)

set(package_destination ${library_destination}/cmake/microgpt_cuda)
set(package_version ${CMAKE_CURRENT_BINARY_DIR}/microgpt_cudaConfigVersion.cmake)
# Before 1.0 each minor version may change the interface.
write_basic_package_version_file(${package_version} COMPATIBILITY SameMinorVersion)
install(EXPORT microgpt_cuda NAMESPACE microgpt_cuda:: FILE microgpt_cudaTargets.cmake DESTINATION ${package_destination})
install(FILES packaging/microgpt_cudaConfig.cmake ${package_version} DESTINATION ${package_destination})

# ---- pkg-config microgpt_cuda

# From the file's own folder up to the prefix; with absolute folders there is no way but the prefix that was configured.
if(IS_ABSOLUTE "${library_folder}")
  set(pkgconfig_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH pkgconfig_prefix /${library_folder}/pkgconfig /)
  string(REGEX REPLACE "/$" "" pkgconfig_prefix "\${pcfiledir}/${pkgconfig_prefix}")
endif()
foreach(kind include library)
  if(IS_ABSOLUTE "${${kind}_folder}")
    set(pkgconfig_${kind} ${${kind}_folder})
  else()
    set(pkgconfig_${kind} "\${prefix}/${${kind}_folder}")
  endif()
endforeach()
configure_file(packaging/microgpt_cuda.pc.in ${CMAKE_CURRENT_BINARY_DIR}/microgpt_cuda.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/microgpt_cuda.pc DESTINATION ${library_destination}/pkgconfig)
