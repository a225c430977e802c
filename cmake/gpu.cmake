# SPDX-License-Identifier: Apache-2.0
# The GPU side of flashattn_objects: machines, launches, the emulator and all device kernels.

include(${CMAKE_CURRENT_LIST_DIR}/gpu_kernels.cmake)

target_sources(flashattn_objects PRIVATE
    src/emulator/approximate.c
    src/emulator/barrier.c
    src/emulator/bulk.c
    src/emulator/cp_async.c
    src/emulator/device.c
    src/emulator/fiber.c
    src/emulator/launch.c
    src/emulator/mbarrier.c
    src/emulator/memory.c
    src/emulator/mma.c
    src/emulator/multiply.c
    src/emulator/order.c
    src/emulator/parts.c
    src/emulator/schedule.c
    src/emulator/shadow.c
    src/emulator/tensor_map.c
    src/emulator/warp.c
    src/emulator/wgmma.c
    src/gpu/driver.c
    src/gpu/launch_backward.c
    src/gpu/launch_forward.c
    src/gpu/launch_v3.c
    src/gpu/machine.c
    src/gpu/machine_cuda.c
    src/gpu/machine_emulated.c
    src/gpu/memory_ranges.c
    src/gpu/variants.c)
gpu_kernels(flashattn_objects
    TABLE ${PROJECT_SOURCE_DIR}/src/kernels/variants.def
    EMBED ${PROJECT_SOURCE_DIR}/src/gpu/variants.c
    ROWS "${FLASHATTN_KERNELS}")

# What programs have to link beside the library, where the C library does not hold it.
set(FLASHATTN_SYSTEM_LIBRARIES ${CMAKE_DL_LIBS})
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
if(CMAKE_THREAD_LIBS_INIT)
    list(APPEND FLASHATTN_SYSTEM_LIBRARIES ${CMAKE_THREAD_LIBS_INIT})
endif()
