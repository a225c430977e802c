/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attention call as the command line describes it: the options that several commands share, and the
 * tensors and fa_options made from them.
 */
#ifndef FLASHATTN_TOOLS_ATTENTION_H
#define FLASHATTN_TOOLS_ATTENTION_H

#include "flashattn.h"
#include "inputs.h"
#include "mask.h"
#include "options.h"
#include "tensors.h"

/* ---- Options ---- */

/* What changes the scores, by numbers alone. */
typedef struct score_settings {
    bool causal;
    bool causal_top_left;
    option_integer window_left;
    option_integer window_right;
    option_number softmax_scale;
    option_number softcap;
} score_settings;

/* The same by tensors in files, and the lengths of sequences. */
typedef struct tensor_settings {
    const char *alibi_slopes, *sink, *bias, *mask;
    const char *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k, *leftpad_k, *block_table;
} tensor_settings;

/* Where q, k and v lie within their files. */
typedef struct layout_settings {
    int layout; /* index of layout_choice */
    const char *q, *k, *v;
} layout_settings;

/* How many threads compute, and into how many parts they cut the keys. */
typedef struct parallel_settings {
    option_integer threads, splits;
} parallel_settings;

extern const option parallel_options[];
extern const size_t parallel_option_count;
extern const option score_options[];
extern const size_t score_option_count;
extern const option tensor_options[];
extern const size_t tensor_option_count;
extern const option layout_options[];
extern const size_t layout_option_count;

/* Spellings of fa_kernel and fa_isa, for options. */
const char *kernel_choice(int index);
const char *isa_choice(int index);
/* Whether it differs from the ones before it for inputs of that type: FA_ISA_AVX512_BF16 does not for others than bfloat16. */
bool isa_serves(fa_isa isa, fa_element type);

/* ---- Calls ---- */

/* Tensors and options of one call. Zero-initialise; not to be copied, options points into it. */
typedef struct attention {
    tensor q, k, v; /* dense: 4 dimensions; variable length: 3; paged k and v: [pages, page_size, heads_kv, head_dim] */
    fa_options options;
    input_files files;
    int32_t file_ndim; /* dimensions of q in its file */
    bool heads_first;  /* --layout bhsd */
    tensor alibi_slopes, sink, bias, mask;
    tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, block_table;
} attention;

/* Options, and their tensors. home: the file that :NAME refers to, or NULL. Returns an exit code. */
int attention_set_options(attention *a, const score_settings *scores, const tensor_settings *tensors, const char *home);

/* q, k and v from one file with tensors of those names, or from three files. Comes after
 * attention_set_options, since lengths decide how dimensions are read. Returns an exit code. */
int attention_open(attention *a, const char *const *arguments, size_t count, const layout_settings *settings);

/* Allocates out and lse for q, k and v; out has the layout of q in memory. */
int attention_allocate(const attention *a, fa_dtype out_dtype, fa_dtype lse_dtype, tensor *out, tensor *lse);
/* Makes out and lse look as q does in its file: without the dimensions that attention_open added. */
void attention_file_view(const attention *a, const tensor *out, const tensor *lse, tensor *out_view, tensor *lse_view);

/* What a call is asked to do, in words: "causal, window 128 left"; "no mask". */
void attention_describe(const attention *a, char *text, size_t size);

void attention_close(attention *a);

/* ---- Sequences: for calls that fa_plan accepted, so that lengths are known to be sound ---- */

typedef struct attention_sequence {
    int64_t q_begin; /* variable length: its first row in q */
    int64_t q_rows;
    int64_t k_begin;
    int64_t k_rows;           /* paged: those that the block table has room for */
    fa_visibility visibility; /* used lengths and mask by position */
} attention_sequence;

int64_t attention_batch(const attention *a);
attention_sequence attention_sequence_at(const attention *a, int64_t n);

/* Operations of the two products over all query-key pairs that positions and lengths let through: 2 *
 * (head_dim + head_dim_v) each. Mask and bias tensors are not looked at. */
double attention_flops(const attention *a);

/* One entry of a table of lengths or pages. */
int32_t table_entry(const tensor *t, int64_t i, int64_t j);

#endif
