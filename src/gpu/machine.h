/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU is to this library: properties, launches, workspace, tensor maps. Two implementations, machine_cuda.c
 * and machine_emulated.c; the code that plans and launches kernels is the same for both.
 *
 * A machine is opened once per process and device and lives as long as the process. All functions are thread-safe,
 * work in stream order without waiting for the device, and leave the caller's current context as it was.
 */
#ifndef FA_GPU_MACHINE_H
#define FA_GPU_MACHINE_H

#include "flashattn.h"
#include "gpu/variants.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that a kernel may touch. The emulator refuses every other address; a GPU has no use for it. */
typedef struct fa_memory_range {
    const void *begin;
    size_t bytes;
    bool writable;
} fa_memory_range;

typedef struct fa_launch {
    const fa_variant *kernel;
    uint32_t grid[3];
    uint32_t threads;      /* of a block, all along x */
    uint32_t cluster;      /* blocks of a cluster along x; 0 or 1: none */
    uint32_t shared_bytes; /* dynamic shared memory of a block */
    const void *params;    /* the kernel's parameter struct; copied */
    size_t params_bytes;
    void *stream; /* as in fa_options */
    const fa_memory_range *memory;
    size_t memory_count;
    int32_t host_threads; /* of the emulator */
} fa_launch;

/* A tensor as TMA sees it; numbers and rules are those of cuTensorMapEncodeTiled. */
typedef struct fa_tensor_map_layout {
    fa_tensor_map_type type;
    fa_tensor_map_swizzle swizzle;
    uint32_t rank;
    const void *data;
    uint64_t extents[5];
    uint64_t strides[4]; /* bytes, of dimension 1 and on; dimension 0 is contiguous */
    uint32_t box[5];
} fa_tensor_map_layout;

typedef struct fa_machine fa_machine;

struct fa_machine {
    char id[24];   /* "cuda:0", "emulated-h100" */
    char name[64]; /* "NVIDIA H200" */
    bool emulated;
    int32_t arch;         /* 80, 90, 100: ten times major plus minor of the compute capability */
    int32_t processors;   /* streaming multiprocessors */
    int64_t shared_bytes; /* the most dynamic shared memory that a block can have */
    int64_t l2_bytes;

    fa_status (*launch)(const fa_machine *machine, const fa_launch *launch);
    /* Workspace, given and taken back in the order of the stream. */
    fa_status (*allocate)(const fa_machine *machine, size_t bytes, void *stream, void **memory);
    fa_status (*release)(const fa_machine *machine, void *memory, void *stream);
    fa_status (*fill)(const fa_machine *machine, void *memory, uint8_t value, size_t bytes, void *stream);
    fa_status (*encode_tensor_map)(const fa_machine *machine, const fa_tensor_map_layout *layout, fa_tensor_map *map);
};

/*
 * The machine for tensors of a device. FA_DEVICE_CUDA: the GPU of that number. FA_DEVICE_CPU: the emulated part that
 * the environment variable FLASHATTN_MACHINE names. FA_UNSUPPORTED with the reason if there is none.
 */
fa_status fa_machine_open(fa_device device, const fa_machine **machine);
/* FLASHATTN_MACHINE is set: tensors on the CPU are to be treated as lying on the emulated machine. */
bool fa_machine_emulation_asked(void);

/* FA_OK if the machine can run the kernel, else FA_UNSUPPORTED with the reason. */
fa_status fa_machine_runs(const fa_machine *machine, const fa_variant *variant);

/* The two implementations. */
int32_t fa_machine_cuda_devices(void); /* 0 without a driver */
fa_status fa_machine_open_cuda(int32_t ordinal, const fa_machine **machine);
/* specification: "emulated-h100" or "emulated-h100:SEED", the seed of the order in which its threads run. */
fa_status fa_machine_open_emulated(const char *specification, const fa_machine **machine);

/* All work done so far by an emulated machine's kernels that ended well. */
void fa_machine_emulated_counters(const fa_machine *machine, fa_emulator_counters *counters);

#endif
