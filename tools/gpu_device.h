/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for measurements: memory, and the time between two points of the default stream, through the driver. */
#ifndef FLASHATTN_TOOLS_GPU_DEVICE_H
#define FLASHATTN_TOOLS_GPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens GPU `number` and makes its primary context current. Returns an exit code, as all functions here do that can fail. */
int gpu_open(int number);

/* Multiply-adds count twice: operations per second of the tensor cores on 16-bit types, at the highest clock. 0: unknown. */
double gpu_peak(void);

int gpu_allocate(void **memory, size_t bytes);
void gpu_free(void *memory);
/* Fills memory with copies of a block of the host's. */
int gpu_fill(void *memory, size_t bytes, const void *block, size_t block_bytes);

/* Around work on the default stream; gpu_stop() waits for it, and gives the time. */
int gpu_start(void);
int gpu_stop(double *seconds);

#endif
