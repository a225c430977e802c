# SPDX-License-Identifier: Apache-2.0
# flashattn_flags: the flags that every source of this project is compiled with.

add_library(flashattn_flags INTERFACE)

# Rounding must not depend on the optimiser: a fused multiply-add stands in the source where one is meant.
target_compile_options(flashattn_flags INTERFACE -ffp-contract=off)

target_compile_options(flashattn_flags INTERFACE
    -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef
    -Wdouble-promotion -Wvla)
if(NOT FLASHATTN_OPENMP)
    target_compile_options(flashattn_flags INTERFACE -Wno-unknown-pragmas)
endif()
if(FLASHATTN_WERROR)
    target_compile_options(flashattn_flags INTERFACE -Werror)
endif()

if(FLASHATTN_SANITIZE)
    target_compile_options(flashattn_flags INTERFACE
        -fsanitize=${FLASHATTN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    target_link_options(flashattn_flags INTERFACE -fsanitize=${FLASHATTN_SANITIZE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(FLASHATTN_X86_64 TRUE)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(FLASHATTN_AARCH64 TRUE)
endif()

# For the files that are written for one instruction set.
set(FLASHATTN_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(FLASHATTN_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
set(FLASHATTN_AVX512_BF16_FLAGS ${FLASHATTN_AVX512_FLAGS} -mavx512bf16)
set(FLASHATTN_AMX_FLAGS ${FLASHATTN_AVX512_BF16_FLAGS} -mamx-tile -mamx-bf16)
set(FLASHATTN_NEON_BF16_FLAGS -march=armv8.2-a+bf16)
