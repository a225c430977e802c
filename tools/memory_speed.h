/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of what reads or moves more than it computes: bytes per second between memory, or a cache, and cores. */
#ifndef FLASHATTN_TOOLS_MEMORY_SPEED_H
#define FLASHATTN_TOOLS_MEMORY_SPEED_H

#include <stddef.h>

/* Reads all bytes once, every thread a part in order, and returns the bytes per second. */
double memory_read_once(const void *data, size_t bytes, int threads);

/* The best of the passes over a buffer of so many bytes that fit into `seconds`, at least three; 0 if there is no memory. A
 * buffer that fits a cache measures the cache. */
double memory_read_measure(size_t bytes, int threads, double seconds);

/* The same for a[i] = b[i] + x * c[i] (the triad of McCalpin's STREAM), three arrays that take so many bytes together; the
 * lines of a that are read before they are written are not counted, as is usual. */
double memory_triad_measure(size_t bytes, int threads, double seconds);

#endif
