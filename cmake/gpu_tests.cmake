# SPDX-License-Identifier: Apache-2.0
# The tests of the GPU side. Include it from tests/CMakeLists.txt, behind test_program() and test_support.

set(gpu_tests ${PROJECT_SOURCE_DIR}/tests/gpu)

# The test kernels and their table, for programs that launch them.
add_library(test_kernels OBJECT ${gpu_tests}/test_variants.c)
target_include_directories(test_kernels PUBLIC
    ${gpu_tests} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(test_kernels PRIVATE flashattn_flags)
gpu_kernels(test_kernels
    TABLE ${gpu_tests}/kernels/test_kernels.def
    EMBED ${gpu_tests}/test_variants.c
    DIRECTORY ${gpu_tests}/kernels)

test_program(test_machine ${gpu_tests}/test_machine.c LIBRARIES test_kernels test_support LABELS threads)
test_program(test_gpu_forward ${gpu_tests}/test_gpu_forward.c ${gpu_tests}/gpu_backward_cases.c ${gpu_tests}/gpu_cases.c
    ${gpu_tests}/gpu_named_cases.c LIBRARIES test_support)
test_program(test_gpu_backward ${gpu_tests}/test_gpu_backward.c ${gpu_tests}/gpu_backward_cases.c ${gpu_tests}/gpu_cases.c
    ${gpu_tests}/gpu_named_cases.c LIBRARIES test_support)

# The whole vocabulary of instructions, in the emulator and in PTX: compiled, never run.
set(every_instruction ${PROJECT_SOURCE_DIR}/tests/emulator/every_instruction.c)
add_library(every_instruction OBJECT ${every_instruction})
target_include_directories(every_instruction PRIVATE ${PROJECT_SOURCE_DIR}/src/kernels)
target_link_libraries(every_instruction PRIVATE flashattn_flags)
if(FLASHATTN_HAS_CUDA)
    foreach(architecture 80 90a)
        add_custom_command(OUTPUT every_instruction_${architecture}.fatbin
            COMMAND ${FLASHATTN_NVCC} -x cu -std=c++17 -fatbin
                -gencode=arch=compute_${architecture},code=sm_${architecture}
                -I${PROJECT_SOURCE_DIR}/src/kernels -o every_instruction_${architecture}.fatbin ${every_instruction}
            DEPENDS ${every_instruction} ${PROJECT_SOURCE_DIR}/src/kernels/instructions/instructions.h
                ${PROJECT_SOURCE_DIR}/src/kernels/instructions/instructions_ptx.h
                ${PROJECT_SOURCE_DIR}/src/kernels/instructions/instructions_ptx_sm90.h
            COMMENT "Compiling every instruction for sm_${architecture}" VERBATIM)
        list(APPEND every_instruction_images every_instruction_${architecture}.fatbin)
    endforeach()
    add_custom_target(every_instruction_gpu ALL DEPENDS ${every_instruction_images})
endif()

# Against a driver without a GPU: as the program links it, dlopen("libcuda.so.1") finds it loaded.
add_library(fake_driver SHARED ${gpu_tests}/fake_driver.c)
target_include_directories(fake_driver PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(fake_driver PRIVATE flashattn_flags)
set_target_properties(fake_driver PROPERTIES
    OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_driver)
test_program(test_machine_cuda ${gpu_tests}/test_machine_cuda.c 
    LIBRARIES test_kernels test_support fake_driver LABELS threads)

# The driver's types and numbers against NVIDIA's header, where that is at hand.
find_path(FLASHATTN_CUDA_INCLUDE_DIR cuda.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
mark_as_advanced(FLASHATTN_CUDA_INCLUDE_DIR)
if(FLASHATTN_CUDA_INCLUDE_DIR)
    add_executable(test_driver_layout ${gpu_tests}/test_driver_layout.c)
    target_include_directories(test_driver_layout PRIVATE
        ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
    target_include_directories(test_driver_layout SYSTEM PRIVATE ${FLASHATTN_CUDA_INCLUDE_DIR})
    target_link_libraries(test_driver_layout PRIVATE flashattn_flags)
    add_test(NAME test_driver_layout COMMAND test_driver_layout)
endif()

# For machines with a GPU and nothing else: with libcmocka beside it, the program runs where it is copied to.
add_executable(gpu_test
    ${gpu_tests}/cuda_calls.c ${gpu_tests}/device.c ${gpu_tests}/gpu_backward_cases.c ${gpu_tests}/gpu_cases.c
    ${gpu_tests}/gpu_named_cases.c ${gpu_tests}/gpu_test.c ${gpu_tests}/large_case.c)
target_link_options(gpu_test PRIVATE -Wl,--wrap=fa_forward,--wrap=fa_backward)
target_link_libraries(gpu_test PRIVATE
    test_kernels test_support flashattn_static flashattn_flags ${CMOCKA_LIBRARY} m)
set_target_properties(gpu_test PROPERTIES BUILD_RPATH "$ORIGIN")
add_custom_command(TARGET gpu_test POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E copy ${CMOCKA_LIBRARY} $<TARGET_FILE_DIR:gpu_test>/libcmocka.so.0)
add_test(NAME gpu_test COMMAND gpu_test)
set_tests_properties(gpu_test PROPERTIES LABELS gpu SKIP_RETURN_CODE 77 TIMEOUT 3600)

# All kernels in one small library is a promise: every new kernel shows here.
add_test(NAME library_size
    COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:flashattn> -DMEGABYTES=20
        -P ${PROJECT_SOURCE_DIR}/cmake/gpu_library_size.cmake)
set_tests_properties(library_size PROPERTIES LABELS installed)
