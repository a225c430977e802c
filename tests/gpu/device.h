/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU for tests: memory, streams and graphs through the driver, which need not be there when the test is built.
 * Whatever fails ends the current test with the driver's error.
 */
#ifndef FLASHATTN_TEST_DEVICE_H
#define FLASHATTN_TEST_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens GPU 0 and makes its primary context current; false with the reason printed if there is none. */
bool device_open(void);
/* For threads other than the one that opened it. */
void device_make_current(void);

void *device_allocate(size_t bytes);
void device_free(void *memory);
size_t device_free_bytes(void);
void device_fill(void *memory, uint8_t value, size_t bytes);
void device_write(void *memory, const void *host, size_t bytes);
void device_read(void *host, const void *memory, size_t bytes);
/* All work on the GPU has ended; fails if any of it did. */
void device_synchronize(void);

/* A stream that does not wait for the legacy default stream. */
void *device_stream_new(void);
void device_stream_free(void *stream);
void device_stream_synchronize(void *stream);

/* Work that is enqueued on the stream in between becomes a graph instead of running. */
void device_capture_begin(void *stream);
void *device_capture_end(void *stream);
void device_graph_launch(void *graph, void *stream);
void device_graph_free(void *graph);

#endif
