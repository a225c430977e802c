/* SPDX-License-Identifier: Apache-2.0 */
/* Copying row tiles from global to shared memory by threads: v1, v2, the standard kernel. */
#ifndef FA_KERNELS_COPY_H
#define FA_KERNELS_COPY_H

#include "forward_params.h"
#include "fragment.h"

/* 1: a branch of its own for tiles without a border, which saves instructions and costs registers. */
#ifndef COPY_TESTS_TILES
#    define COPY_TESTS_TILES 0
#endif

/*
 * Rows first .. of what `source` points at (the row numbered 0) become rows 0 .. of the tile; those outside [begin, end), and columns from
 * `columns` on, become zero and are not read. Eight lanes (four, in 64-byte pages) copy one row's page at a time, so that the writes of a
 * quarter warp fill 128 bytes. rows, pages and threads are constants.
 */
DEVICE void copy_pages_async(uint32_t tile, int rows, int pages, const char *source, int64_t row_stride, int first,
                             int begin, int end, int columns, int threads) {
    const int lanes = TILE_PAGE / 8;
    const int lane = (int)thread_index() % lanes, start = (int)thread_index() / lanes;
    if (rows < threads / lanes && start >= rows) return; /* more threads than pieces of a page */
    const uint32_t destination = tile_address(tile, rows, start, lane);
    const char *from = source + (first + start) * row_stride + lane * 16;
    if (COPY_TESTS_TILES && first >= begin && first + rows <= end &&
        pages * TILE_PAGE == columns) { /* most tiles: nothing to test */
        UNROLL
        for (int i = 0; i < rows; i += threads / lanes) {
            UNROLL
            for (int page = 0; page < pages; page++)
                cp_async_16(fragment_at(destination, rows, i, page * (TILE_PAGE / 16)), from + page * TILE_PAGE_BYTES,
                            16);
            from += threads / lanes * row_stride;
        }
        return;
    }
    UNROLL
    for (int i = 0; i < rows; i += threads / lanes) { /* a multiple of 8 rows */
        int row = first + i + start, in_range = row >= begin && row < end;
        UNROLL
        for (int page = 0; page < pages; page++) {
            int valid = in_range && page * TILE_PAGE + lane * 8 < columns;
            cp_async_16(fragment_at(destination, rows, i, page * (TILE_PAGE / 16)), from + page * TILE_PAGE_BYTES,
                        valid ? 16u : 0u);
        }
        from += threads / lanes * row_stride;
    }
}

/* All columns, element by element, for rows that are not aligned to 16 bytes (2 at least) or not a multiple of 16 bytes long. */
DEVICE void copy_tile_elements(uint32_t tile, int rows, const char *source, int64_t row_stride, int first, int begin,
                               int end, int columns, int threads) {
    NO_UNROLL
    for (int i = (int)thread_index(); i < rows * HEAD_DIM; i += threads) {
        int r = i / HEAD_DIM, column = i % HEAD_DIM, row = first + r;
        uint16_t x = 0;
        if (row >= begin && row < end && column < columns) x = global_load_u16(source + row * row_stride + column * 2);
        shared_store_u16(tile_address(tile, rows, r, column / 8) + (uint32_t)(column % 8 * 2), x);
    }
}

/* A tile of q, k or v, HEAD_DIM columns wide. */
DEVICE void load_tile(uint32_t tile, int rows, const char *source, const fa_device_rows *tensor, int first, int begin,
                      int end, int columns, const fa_forward_params *p, int threads) {
#if GENERAL
    if (!p->rows_aligned) {
        copy_tile_elements(tile, rows, source, tensor->row_stride, first, begin, end, columns, threads);
        return;
    }
#else
    (void)p;
#endif
    copy_pages_async(tile, rows, HEAD_DIM / TILE_PAGE, source, tensor->row_stride, first, begin, end, columns, threads);
}

#endif
