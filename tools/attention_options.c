/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables that commands share: see attention.h. */
#include "attention.h"

#define SCORE(member) offsetof(score_settings, member)
#define TENSOR(member) offsetof(tensor_settings, member)
#define LAYOUT(member) offsetof(layout_settings, member)
#define PARALLEL(member) offsetof(parallel_settings, member)

const char *kernel_choice(int index) { return index <= FA_KERNEL_V4 ? fa_kernel_name((fa_kernel)index) : NULL; }

const char *isa_choice(int index) { return index <= FA_ISA_NEON_BF16 ? fa_isa_name((fa_isa)index) : NULL; }

/* Those with bfloat16 alone stand for others otherwise. */
bool isa_serves(fa_isa isa, fa_element type) {
    return (isa != FA_ISA_AVX512_BF16 && isa != FA_ISA_NEON_BF16) || type == FA_ELEMENT_BFLOAT16;
}

static const char *layout_choice(int index) {
    static const char *const names[] = {"bshd", "bhsd", NULL};
    return names[index];
}

const option score_options[] = {
    {.name = "causal",
     .kind = OPTION_FLAG,
     .offset = SCORE(causal),
     .help = "the last query sees the last key (bottom-right alignment), earlier ones fewer"},
    {.name = "causal-top-left",
     .kind = OPTION_FLAG,
     .offset = SCORE(causal_top_left),
     .help = "the first query sees only the first key, as PyTorch's is_causal has it"},
    {.name = "window-left",
     .kind = OPTION_INTEGER,
     .offset = SCORE(window_left),
     .placeholder = "N",
     .min = FA_WINDOW_OPEN,
     .max = INT64_MAX,
     .help = "a query sees at most N keys before its own position; -1: all (the default)"},
    {.name = "window-right",
     .kind = OPTION_INTEGER,
     .offset = SCORE(window_right),
     .placeholder = "N",
     .min = FA_WINDOW_OPEN,
     .max = INT64_MAX,
     .help = "the same for keys after it"},
    {.name = "softmax-scale",
     .kind = OPTION_NUMBER,
     .offset = SCORE(softmax_scale),
     .placeholder = "X",
     .help = "factor of q.k; default 1/sqrt(head_dim)"},
    {.name = "softcap",
     .kind = OPTION_NUMBER,
     .offset = SCORE(softcap),
     .placeholder = "X",
     .help = "scores become X * tanh(score / X); 0: no cap (the default)"},
};
const size_t score_option_count = sizeof score_options / sizeof score_options[0];

const option tensor_options[] = {
    {.name = "alibi-slopes",
     .kind = OPTION_TEXT,
     .offset = TENSOR(alibi_slopes),
     .placeholder = "TENSOR",
     .help = "ALiBi slopes, float32 [heads] or [batch, heads]"},
    {.name = "sink",
     .kind = OPTION_TEXT,
     .offset = TENSOR(sink),
     .placeholder = "TENSOR",
     .help = "a logit per head that joins the softmax without a value, float32 [heads]"},
    {.name = "bias",
     .kind = OPTION_TEXT,
     .offset = TENSOR(bias),
     .placeholder = "TENSOR",
     .help = "added to the scores, [batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1]; leading "
             "dimensions may be left out"},
    {.name = "mask",
     .kind = OPTION_TEXT,
     .offset = TENSOR(mask),
     .placeholder = "TENSOR",
     .help = "bool or uint8, nonzero where a query may see a key; shape as for --bias"},
    {.name = "cu-seqlens-q",
     .kind = OPTION_TEXT,
     .offset = TENSOR(cu_seqlens_q),
     .placeholder = "TENSOR",
     .help = "q is [total_q, heads, head_dim] and holds sequence n in rows cu[n] .. cu[n+1]-1; integers "
             "[batch + 1]"},
    {.name = "cu-seqlens-k",
     .kind = OPTION_TEXT,
     .offset = TENSOR(cu_seqlens_k),
     .placeholder = "TENSOR",
     .help = "the same for k and v"},
    {.name = "seqused-q",
     .kind = OPTION_TEXT,
     .offset = TENSOR(seqused_q),
     .placeholder = "TENSOR",
     .help = "only so many queries of each sequence count, integers [batch]"},
    {.name = "seqused-k",
     .kind = OPTION_TEXT,
     .offset = TENSOR(seqused_k),
     .placeholder = "TENSOR",
     .help = "only so many keys of each sequence count, integers [batch]"},
    {.name = "leftpad-k",
     .kind = OPTION_TEXT,
     .offset = TENSOR(leftpad_k),
     .placeholder = "TENSOR",
     .help = "so many keys at the start of each sequence are padding, integers [batch]"},
    {.name = "block-table",
     .kind = OPTION_TEXT,
     .offset = TENSOR(block_table),
     .placeholder = "TENSOR",
     .help = "k and v are [pages, page_size, heads_kv, head_dim]; the pages of each sequence, integers "
             "[batch, max_pages]; needs --seqused-k"},
};
const size_t tensor_option_count = sizeof tensor_options / sizeof tensor_options[0];

const option layout_options[] = {
    {.name = "layout",
     .kind = OPTION_CHOICE,
     .offset = LAYOUT(layout),
     .placeholder = "ORDER",
     .choices = layout_choice,
     .help = "order of dimensions in the files: bshd = [batch, seqlen, heads, head_dim] (the default), bhsd = "
             "[batch, heads, seqlen, head_dim]; the output has the same"},
    {.name = "q",
     .kind = OPTION_TEXT,
     .offset = LAYOUT(q),
     .placeholder = "NAME",
     .help = "name of the queries in a .safetensors file that holds them all; default q"},
    {.name = "k",
     .kind = OPTION_TEXT,
     .offset = LAYOUT(k),
     .placeholder = "NAME",
     .help = "name of the keys; default k"},
    {.name = "v",
     .kind = OPTION_TEXT,
     .offset = LAYOUT(v),
     .placeholder = "NAME",
     .help = "name of the values; default v"},
};
const size_t layout_option_count = sizeof layout_options / sizeof layout_options[0];

const option parallel_options[] = {
    {.name = "threads",
     .kind = OPTION_INTEGER,
     .offset = PARALLEL(threads),
     .placeholder = "N",
     .min = 0,
     .max = 4096,
     .help = "number of threads; 0: automatic (the default). Results do not depend on it"},
    {.name = "splits",
     .kind = OPTION_INTEGER,
     .offset = PARALLEL(splits),
     .placeholder = "N",
     .min = 0,
     .max = 256,
     .help = "parts that keys are cut into; 0: automatic (the default)"},
};
const size_t parallel_option_count = sizeof parallel_options / sizeof parallel_options[0];
