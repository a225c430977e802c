/* SPDX-License-Identifier: Apache-2.0 */
/* One measurement of `flashattn bench`: a shape, a type and an instruction set, and what was measured. */
#ifndef FLASHATTN_TOOLS_BENCH_CASE_H
#define FLASHATTN_TOOLS_BENCH_CASE_H

#include "attention.h"
#include "terminal.h"

typedef struct bench_case {
    fa_element dtype;
    fa_isa isa;
    bool backward;
    int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim;

    char plan[64];
    int threads;
    double flops;
    int repetitions;
    double best, median; /* seconds of one call */
    double bytes;        /* of q, k, v and the output */
    double read;         /* bytes per second at which q, k and v can be read, likewise */
    double peak;         /* operations per second of the FMA loop, interleaved with the calls */
} bench_case;

typedef struct bench_list {
    bench_case *cases;
    size_t count;
    char rules[256];   /* causal and the like, the same for all */
    int threads;       /* likewise */
    bool machine_busy; /* before the first measurement */
    double load;
} bench_list;

/* ---- Properties: what distinguishes cases, for tables, plots and JSON alike ---- */

typedef enum bench_property {
    BENCH_DTYPE,
    BENCH_ISA,
    BENCH_BATCH,
    BENCH_HEADS,
    BENCH_HEADS_KV,
    BENCH_SEQLEN_Q,
    BENCH_SEQLEN_K,
    BENCH_HEAD_DIM,
    BENCH_PROPERTIES
} bench_property;

const char *bench_property_name(bench_property property);
/* The value as a number; of BENCH_DTYPE and BENCH_ISA that of the enum. */
int64_t bench_property_value(const bench_case *c, bench_property property);
void bench_property_text(const bench_case *c, bench_property property, char *text, size_t size);

/* The same as readers like it. If all cases have as many keys as queries, BENCH_SEQLEN_Q is left out and
 * BENCH_SEQLEN_K is called "seqlen"; if all have as many heads_kv as heads, BENCH_HEADS_KV is left out. */
typedef enum bench_role { BENCH_LEFT_OUT, BENCH_COMMON, BENCH_VARIES } bench_role;
bench_role bench_property_role(const bench_list *list, bench_property property);
const char *bench_property_title(const bench_list *list, bench_property property);
/* Queries and keys alike in all cases. */
bool bench_all_square(const bench_list *list);
/* Those in which the cases agree, and the rules: "float32, avx512, batch 1, heads 8, causal". */
void bench_common_text(const bench_list *list, char *text, size_t size);

/* ---- Measuring ---- */

/* Asks the library for the plan: fills isa, plan and flops, or refuses. Returns an exit code. */
int bench_case_plan(bench_case *c, const score_settings *scores, int threads);

typedef struct bench_clock {
    double seconds; /* for this case; one call is made even if it takes longer */
    progress *bar;
    double done; /* before this case */
    const char *label;
} bench_clock;

int bench_case_measure(bench_case *c, const score_settings *scores, const bench_clock *time);

#endif
