/* SPDX-License-Identifier: Apache-2.0 */
/* The attention weights of one head, softmax(...) itself, for a picture. */
#ifndef FLASHATTN_TOOLS_ATTENTION_WEIGHTS_H
#define FLASHATTN_TOOLS_ATTENTION_WEIGHTS_H

#include "attention.h"

/* Sequences longer than this are refused: the whole matrix is computed. */
#define WEIGHTS_MAX_SEQLEN 4096
/* More rows or columns than this become cells that show the largest of several weights. */
#define WEIGHTS_MAX_CELLS 1024

typedef struct attention_weights {
    int64_t queries, keys;         /* used lengths of the sequence */
    int64_t rows, columns;         /* cells */
    int64_t row_step, column_step; /* queries and keys per cell */
    float *weight;                 /* [rows][columns] */
    unsigned char *visible;        /* [rows][columns]: whether any query of the cell may see any key */
} attention_weights;

/* For a call that fa_plan accepted. Returns an exit code. */
int attention_weights_compute(const attention *a, int64_t batch, int64_t head, attention_weights *w);
void attention_weights_free(attention_weights *w);

#endif
