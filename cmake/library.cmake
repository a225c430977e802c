# SPDX-License-Identifier: Apache-2.0
# libflashattn, shared and static, from the same objects.

set(flashattn_sources
    src/attention.c
    src/combine.c
    src/cpu/block.c
    src/cpu/backward.c
    src/cpu/backward_bias.c
    src/cpu/backward_tile.c
    src/cpu/dispatch.c
    src/cpu/forward.c
    src/cpu/kernels_avx2.c
    src/cpu/kernels_amx.c
    src/cpu/kernels_amx_split.c
    src/cpu/kernels_avx512.c
    src/cpu/kernels_avx512_bf16.c
    src/cpu/kernels_backward_amx.c
    src/cpu/kernels_backward_avx512_bf16.c
    src/cpu/kernels_backward_neon_bf16.c
    src/cpu/kernels_neon.c
    src/cpu/kernels_neon_bf16.c
    src/cpu/kernels_portable.c
    src/cpu/memory.c
    src/cpu/score_row.c
    src/cpu/threads.c
    src/gradients.c
    src/problem.c
    src/reference.c
    src/reference_backward.c
    src/standard.c
    src/status.c
    src/tensor.c)

# The instruction set is chosen at run time, so only a kernel's own file may be compiled for it. On another
# architecture these files are empty.
if(FLASHATTN_X86_64)
    set_source_files_properties(src/cpu/kernels_avx2.c PROPERTIES COMPILE_OPTIONS "${FLASHATTN_AVX2_FLAGS}")
    set_source_files_properties(src/cpu/kernels_avx512.c PROPERTIES COMPILE_OPTIONS "${FLASHATTN_AVX512_FLAGS}")
    set_source_files_properties(src/cpu/kernels_avx512_bf16.c PROPERTIES
        COMPILE_OPTIONS "${FLASHATTN_AVX512_BF16_FLAGS}")
    set_source_files_properties(src/cpu/kernels_amx.c src/cpu/kernels_amx_split.c src/cpu/kernels_backward_amx.c
        PROPERTIES COMPILE_OPTIONS "${FLASHATTN_AMX_FLAGS}")
    set_source_files_properties(src/cpu/kernels_backward_avx512_bf16.c PROPERTIES
        COMPILE_OPTIONS "${FLASHATTN_AVX512_BF16_FLAGS}")
elseif(FLASHATTN_AARCH64)
    set_source_files_properties(src/cpu/kernels_neon_bf16.c src/cpu/kernels_backward_neon_bf16.c PROPERTIES
        COMPILE_OPTIONS "${FLASHATTN_NEON_BF16_FLAGS}")
endif()

set_source_files_properties(src/cpu/threads.c PROPERTIES COMPILE_DEFINITIONS _GNU_SOURCE) # affinity masks

add_library(flashattn_objects OBJECT ${flashattn_sources})
target_include_directories(flashattn_objects PRIVATE include src)
target_compile_definitions(flashattn_objects PRIVATE FA_BUILDING)
target_link_libraries(flashattn_objects PRIVATE flashattn_flags)

if(FLASHATTN_OPENMP)
    find_package(OpenMP REQUIRED COMPONENTS C)
    target_link_libraries(flashattn_objects PRIVATE OpenMP::OpenMP_C)
endif()

include(cmake/gpu.cmake)

# What a program that links the static library has to link as well. OpenMP as a flag, not as the target
# OpenMP::OpenMP_C: such programs then need no FindOpenMP of their own, in whatever language they are.
set(FLASHATTN_PRIVATE_LIBS -lm ${FLASHATTN_SYSTEM_LIBRARIES} ${OpenMP_C_FLAGS})

function(add_flashattn_library target kind)
    add_library(${target} ${kind} $<TARGET_OBJECTS:flashattn_objects>)
    add_library(flashattn::${target} ALIAS ${target})
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME flashattn VERSION ${PROJECT_VERSION} SOVERSION 0 LINKER_LANGUAGE C)
    target_link_libraries(${target} PRIVATE ${FLASHATTN_PRIVATE_LIBS} $<BUILD_INTERFACE:flashattn_flags>)
endfunction()

add_flashattn_library(flashattn SHARED)
add_flashattn_library(flashattn_static STATIC)
# As flashattn.pc has it.
list(TRANSFORM FLASHATTN_PRIVATE_LIBS PREPEND "-l" REGEX "^[^-]")
list(JOIN FLASHATTN_PRIVATE_LIBS " " FLASHATTN_PRIVATE_LIBS)
