# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, and how other projects find it: find_package(flashattn) and pkg-config.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashattn)

install(FILES include/flashattn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS flashattn flashattn_static EXPORT flashattn_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT flashattn_targets FILE flashattn-targets.cmake NAMESPACE flashattn:: DESTINATION ${config_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(cmake/flashattn-config.cmake.in ${PROJECT_BINARY_DIR}/flashattn-config.cmake
    INSTALL_DESTINATION ${config_dir})
# While the version is 0.x, a minor release may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashattn-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashattn-config.cmake ${PROJECT_BINARY_DIR}/flashattn-config-version.cmake
    DESTINATION ${config_dir})

# flashattn.pc finds its prefix from its own place, so an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/flashattn.pc.in ${PROJECT_BINARY_DIR}/flashattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(FLASHATTN_TOOLS)
    install(TARGETS flashattn_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The Python package loads the library from its own folder. A wheel cannot hold symbolic links, so there it has one name.
if(SKBUILD)
    install(FILES $<TARGET_FILE:flashattn> DESTINATION flashattn COMPONENT python
        RENAME ${CMAKE_SHARED_LIBRARY_PREFIX}flashattn${CMAKE_SHARED_LIBRARY_SUFFIX})
endif()
