/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which part of O a warp holds in registers, float o[OUT_STRIPS][OUT_COLUMNS / 2]: as mma.sync leaves it, strips of 16
 * rows, of each of them groups of 8 columns. The including kernel may say:
 *   OUT_STRIPS      strips; those whose scores the warp computes, if not given
 *   OUT_COLUMNS     columns; all, if not given
 *   OUT_FIRST_STEP  where they begin, in steps of 16 columns
 *   OUT_STEP        from 16 of them to the next 16, in the same steps
 */
#ifndef FA_KERNELS_OUTPUT_LAYOUT_H
#define FA_KERNELS_OUTPUT_LAYOUT_H

#include "instructions/instructions.h"

#ifndef OUT_STRIPS
#    define OUT_STRIPS STRIPS
#endif
#ifndef OUT_COLUMNS
#    define OUT_COLUMNS HEAD_DIM
#endif
#ifndef OUT_FIRST_STEP
#    define OUT_FIRST_STEP 0
#    define OUT_STEP 1
#endif

/* The first column of o[strip][4 * group ...]. */
DEVICE int out_column(int group) { return 16 * (OUT_FIRST_STEP + group / 2 * OUT_STEP) + group % 2 * 8; }

#endif
