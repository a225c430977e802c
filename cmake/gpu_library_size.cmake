# SPDX-License-Identifier: Apache-2.0
# cmake -DLIBRARY=FILE -DMEGABYTES=N -P gpu_library_size.cmake: prints the size of the file; fails beyond the limit.

file(SIZE ${LIBRARY} bytes)
math(EXPR kilobytes "${bytes} / 1000")
set(text "${LIBRARY}: ${kilobytes} kB, at most ${MEGABYTES}000 kB")
if(kilobytes GREATER "${MEGABYTES}000")
    message(FATAL_ERROR "${text}")
endif()
message("${text}")
