# SPDX-License-Identifier: Apache-2.0
# gpu_kernels(): compiles the rows of a kernel table, such as src/kernels/variants.def, which explains the columns.

set(FLASHATTN_CUDA AUTO CACHE STRING
    "GPU code: ON (needs nvcc), OFF (kernels run in the emulator only), AUTO (ON if nvcc is there).")
set_property(CACHE FLASHATTN_CUDA PROPERTY STRINGS AUTO ON OFF)

set(FLASHATTN_KERNEL_FLAGS "" CACHE STRING
    "More options for the GPU kernels, such as -DPING_PONG=0, to measure what a technique is worth.")
set(FLASHATTN_KERNELS "" CACHE STRING
    "A regular expression for the rows of src/kernels/variants.def that are built, such as v3_forward; empty: all.")

if(FLASHATTN_CUDA)
    find_program(FLASHATTN_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin
        DOC "The CUDA compiler.")
    if(NOT FLASHATTN_NVCC AND NOT FLASHATTN_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "FLASHATTN_CUDA = ${FLASHATTN_CUDA} needs nvcc; set FLASHATTN_NVCC to its path.")
    endif()
endif()
if(FLASHATTN_CUDA AND FLASHATTN_NVCC)
    set(FLASHATTN_HAS_CUDA TRUE)
    message(STATUS "GPU kernels: compiled by ${FLASHATTN_NVCC}")
else()
    set(FLASHATTN_HAS_CUDA FALSE)
    message(STATUS "GPU kernels: for the emulator only")
endif()

set(gpu_target_sm80
    -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_80,code=compute_80)
set(gpu_target_sm90a -gencode=arch=compute_90a,code=sm_90a)

# gpu_kernels(TARGET TABLE FILE EMBED SOURCE [DIRECTORY DIRECTORY] [ROWS REGEX])
#
# Each row becomes a small file that sets its macros and includes the kernel's source from DIRECTORY (src/kernels if not
# given). TARGET compiles it for the emulator. With nvcc it also becomes a fatbin, which SOURCE, a file of TARGET that
# makes the table of variants, embeds: its macro FA_IMAGES is the directory of the fatbins. ROWS, if not empty, chooses
# among the rows: SOURCE then has the macro FA_KERNEL_TABLE, a file that holds these alone.
function(gpu_kernels target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "TABLE;EMBED;DIRECTORY;ROWS" "")
    if(NOT arg_DIRECTORY)
        set(arg_DIRECTORY ${PROJECT_SOURCE_DIR}/src/kernels)
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${arg_TABLE})
    set(build ${CMAKE_CURRENT_BINARY_DIR}/${target}_kernels)
    set(includes ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/src/kernels ${arg_DIRECTORY})
    list(REMOVE_DUPLICATES includes)
    list(TRANSFORM includes PREPEND "-I" OUTPUT_VARIABLE nvcc_flags)
    list(APPEND nvcc_flags ${FLASHATTN_KERNEL_FLAGS})
    set(images "")

    file(STRINGS ${arg_TABLE} rows REGEX "^FA_KERNEL\\(")
    if(arg_ROWS)
        list(FILTER rows INCLUDE REGEX "${arg_ROWS}")
        list(JOIN rows "\n" table)
        file(CONFIGURE OUTPUT ${build}/rows.def CONTENT "@table@\n" @ONLY)
        set_property(SOURCE ${arg_EMBED} APPEND PROPERTY COMPILE_DEFINITIONS "FA_KERNEL_TABLE=\"${build}/rows.def\"")
    endif()
    foreach(row IN LISTS rows)
        string(REGEX REPLACE "^FA_KERNEL\\(([^)]*)\\).*" "\\1" columns "${row}")
        string(REPLACE ", " ";" columns "${columns}")
        list(POP_FRONT columns source architecture dtype widths general block_m block_n warps stages quality)
        set(kernel fa_${source}_${dtype}_d${widths})
        if(general)
            string(APPEND kernel _general)
        endif()
        string(COMPARE EQUAL "${dtype}" bf16 bf16)
        string(REGEX REPLACE "_.*" "" head_dim ${widths})
        string(REGEX REPLACE ".*_" "" head_dim_v ${widths})

        file(CONFIGURE OUTPUT ${build}/${kernel}.c CONTENT [[
#define KERNEL_NAME @kernel@
#define HEAD_DIM @head_dim@
#define HEAD_DIM_V @head_dim_v@
#define BF16 @bf16@
#define GENERAL @general@
#define BLOCK_M @block_m@
#define BLOCK_N @block_n@
#define WARPS @warps@
#define STAGES @stages@
#include "@source@.c"
]] @ONLY)
        target_sources(${target} PRIVATE ${build}/${kernel}.c)
        set_source_files_properties(${build}/${kernel}.c PROPERTIES
            INCLUDE_DIRECTORIES "${includes}" COMPILE_OPTIONS "${FLASHATTN_KERNEL_FLAGS}")

        if(FLASHATTN_HAS_CUDA)
            add_custom_command(
                OUTPUT ${build}/${kernel}.fatbin
                COMMAND ${CMAKE_COMMAND} -DNVCC=${FLASHATTN_NVCC} "-DFLAGS=${gpu_target_${architecture}};${nvcc_flags}"
                    -DKERNEL=${build}/${kernel} -DQUALITY=${quality}
                    -P ${PROJECT_SOURCE_DIR}/cmake/gpu_compile_kernel.cmake
                DEPENDS ${build}/${kernel}.c ${PROJECT_SOURCE_DIR}/cmake/gpu_compile_kernel.cmake
                DEPFILE ${build}/${kernel}.d
                COMMENT "Compiling ${kernel} for the GPU"
                VERBATIM)
            list(APPEND images ${build}/${kernel}.fatbin)
        endif()
    endforeach()

    if(FLASHATTN_HAS_CUDA)
        set_property(SOURCE ${arg_EMBED} APPEND PROPERTY COMPILE_DEFINITIONS "FA_IMAGES=\"${build}\"")
        set_property(SOURCE ${arg_EMBED} APPEND PROPERTY OBJECT_DEPENDS "${images}")
    endif()
endfunction()
