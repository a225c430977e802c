# SPDX-License-Identifier: Apache-2.0
# flashattn_io, which reads and writes tensor files, and the flashattn command.

find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.12)
pkg_check_modules(CAIRO REQUIRED IMPORTED_TARGET cairo>=1.14)

set(flashattn_io_sources
    src/io/atomic_output.c
    src/io/file_format.c
    src/io/npy.c
    src/io/safetensors.c
    src/io/tensor_file.c
    src/io/write_elements.c)
add_library(flashattn_io STATIC ${flashattn_io_sources})
target_include_directories(flashattn_io PUBLIC include src)
target_link_libraries(flashattn_io PRIVATE flashattn_flags PUBLIC PkgConfig::JANSSON)

add_executable(flashattn_command
    tools/attention.c
    tools/attention_options.c
    tools/attention_sequences.c
    tools/attention_weights.c
    tools/bench_case.c
    tools/bench_ceilings.c
    tools/bench_gpu.c
    tools/bench_report.c
    tools/canvas.c
    tools/check.c
    tools/check_backward.c
    tools/clock.c
    tools/colour_map.c
    tools/command_bench.c
    tools/command_check.c
    tools/command_count.c
    tools/command_info.c
    tools/command_run.c
    tools/fma_peak.c
    tools/fma_peak_amx.c
    tools/fma_peak_avx2.c
    tools/fma_peak_avx512.c
    tools/fma_peak_avx512_bf16.c
    tools/fma_peak_neon.c
    tools/fma_peak_neon_bf16.c
    tools/fma_peak_portable.c
    tools/gpu_device.c
    tools/help.c
    tools/inputs.c
    tools/json_output.c
    tools/machine.c
    tools/main.c
    tools/memory_speed.c
    tools/message.c
    tools/options.c
    tools/picture.c
    tools/plot_heat_map.c
    tools/plot_lines.c
    tools/tensors.c
    tools/terminal.c
    tools/text_table.c
    tools/work.c)
set_target_properties(flashattn_command PROPERTIES OUTPUT_NAME flashattn)
target_link_libraries(flashattn_command PRIVATE
    flashattn_io flashattn_static flashattn_flags PkgConfig::CAIRO PkgConfig::JANSSON m ${CMAKE_DL_LIBS})
if(FLASHATTN_OPENMP)
    target_link_libraries(flashattn_command PRIVATE OpenMP::OpenMP_C)
endif()
if(FLASHATTN_X86_64)
    set_source_files_properties(tools/fma_peak_avx2.c PROPERTIES COMPILE_OPTIONS "${FLASHATTN_AVX2_FLAGS}")
    set_source_files_properties(tools/fma_peak_avx512.c PROPERTIES COMPILE_OPTIONS "${FLASHATTN_AVX512_FLAGS}")
    set_source_files_properties(tools/fma_peak_avx512_bf16.c PROPERTIES
        COMPILE_OPTIONS "${FLASHATTN_AVX512_BF16_FLAGS}")
    set_source_files_properties(tools/fma_peak_amx.c PROPERTIES COMPILE_OPTIONS "${FLASHATTN_AMX_FLAGS}")
elseif(FLASHATTN_AARCH64)
    set_source_files_properties(tools/fma_peak_neon_bf16.c PROPERTIES COMPILE_OPTIONS "${FLASHATTN_NEON_BF16_FLAGS}")
endif()
