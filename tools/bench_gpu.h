/* SPDX-License-Identifier: Apache-2.0 */
/* flashattn bench --device cuda: how fast are the GPU kernels, against each other and against the tensor cores? */
#ifndef FLASHATTN_TOOLS_BENCH_GPU_H
#define FLASHATTN_TOOLS_BENCH_GPU_H

#include "attention.h"

/* Empty lists mean the defaults: 16384 tokens and 2048 columns at every length. */
typedef struct bench_gpu_settings {
    option_integer_list batch, heads, heads_kv, seqlen, head_dim;
    uint32_t dtypes;  /* bits of fa_element; 0: bfloat16 */
    uint32_t kernels; /* bits of fa_kernel; 0: all that can run every case */
    bool backward;    /* the gradients of q, k and v in place of the output */
    double seconds;   /* for all measurements together */
    const char *json;
} bench_gpu_settings;

/* Returns an exit code. */
int bench_gpu(const bench_gpu_settings *settings, const score_settings *scores);

#endif
