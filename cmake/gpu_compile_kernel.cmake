# SPDX-License-Identifier: Apache-2.0
# cmake -DNVCC=... -DFLAGS=... -DKERNEL=PATH -DQUALITY=tuned|plain -P gpu_compile_kernel.cmake
#
# Compiles PATH.c to PATH.fatbin, and keeps what the compiler said about registers, spills and stack in PATH.resources.
# A tuned kernel fails where the compiler had to give up what makes it fast: registers spilled to memory, or wgmma
# serialised (C7510 and its like).

execute_process(
    COMMAND ${NVCC} -x cu -std=c++17 -O3 -fatbin ${FLAGS} --compress-mode=size -Xptxas=-v
        -MD -MF ${KERNEL}.d -MT ${KERNEL}.fatbin -o ${KERNEL}.fatbin ${KERNEL}.c
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
file(WRITE ${KERNEL}.resources "${output}")
string(REGEX MATCHALL "[^\n]*([1-9][0-9]* bytes spill|\\(C75[0-9][0-9]\\))[^\n]*" losses "${output}")
list(JOIN losses "\n" losses)
string(REGEX MATCHALL "[^\n]*warning[^\n]*" warnings "${output}")
list(JOIN warnings "\n" warnings)

if(NOT result EQUAL 0)
    message(FATAL_ERROR "${output}")
elseif(QUALITY STREQUAL "tuned" AND losses)
    file(REMOVE ${KERNEL}.fatbin)
    message(FATAL_ERROR "${KERNEL} is marked as tuned, but:\n${losses}")
elseif(warnings)
    message(WARNING "${warnings}")
endif()
