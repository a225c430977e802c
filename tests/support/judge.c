/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an answer is right: see judge.h. */
#include "judge.h"

#include "answer.h"
#include "oracle.h"
#include "testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const contender *contenders(int *count) {
    static contender all[CONTENDERS];
    *count = 0;
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_NEON_BF16; isa++)
        if (fa_isa_supported((fa_isa)isa) == FA_OK) all[(*count)++] = (contender){FA_KERNEL_CPU, (fa_isa)isa};
    return all;
}

const contender *contenders_of_type(fa_element type, int *count) {
    static contender chosen[CONTENDERS];
    int everyone;
    const contender *all = contenders(&everyone);
    *count = 0;
    for (int w = 0; w < everyone; w++)
        if (runs_as(all[w].isa, type) == all[w].isa) chosen[(*count)++] = all[w];
    return chosen;
}

bool rounds_weights(contender who, fa_element type) {
    bool may = who.isa >= FA_ISA_AVX512_BF16 ||
               (who.isa == FA_ISA_AUTO &&
                (fa_isa_supported(FA_ISA_AVX512_BF16) == FA_OK || fa_isa_supported(FA_ISA_NEON_BF16) == FA_OK));
    return who.kernel == FA_KERNEL_CPU && may && type == FA_ELEMENT_BFLOAT16;
}

fa_isa runs_as(fa_isa isa, fa_element type) {
    if (type == FA_ELEMENT_BFLOAT16) return isa;
    return isa == FA_ISA_AVX512_BF16 ? FA_ISA_AVX512 : isa == FA_ISA_NEON_BF16 ? FA_ISA_NEON : isa;
}

const char *contender_name(contender who) {
    return who.kernel == FA_KERNEL_CPU ? fa_isa_name(who.isa) : fa_kernel_name(who.kernel);
}

/* ---- Running ---- */

uint64_t inputs_checksum(const attention_call *a) {
    const tensor *all[] = {a->q,    a->k,    a->v,         a->alibi,     a->sink,      a->bias,       a->mask,
                           a->cu_q, a->cu_k, a->seqused_q, a->seqused_k, a->leftpad_k, a->block_table};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] != NULL) sum = sum * 31 + tensor_checksum(all[i]);
    return sum;
}

static outputs run_with(attention_call *a, contender who, fa_element out_type, fa_element lse_type) {
    outputs o = {call_new_out(a, out_type), call_new_lse(a, lse_type)};
    fa_options options = a->options;
    options.kernel = who.kernel;
    options.isa = who.isa;
    if (who.kernel != FA_KERNEL_CPU) options.num_splits = 0;
    uint64_t before = inputs_checksum(a);
    fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &o.out->fa, &o.lse->fa);
    if (status != FA_OK) call_fail(a, "%s: %s: %s", contender_name(who), fa_status_text(status), fa_last_error());
    if (inputs_checksum(a) != before) call_fail(a, "%s: an input was written", contender_name(who));
    const char *wrong = fault_in_writing("out", o.out);
    if (wrong == NULL) wrong = fault_in_writing("lse", o.lse);
    if (wrong != NULL) call_fail(a, "%s: %s", contender_name(who), wrong);
    return o;
}

outputs run_call(attention_call *a, contender who) {
    return run_with(a, who, a->c.out_float32 ? FA_ELEMENT_FLOAT32 : a->c.type, FA_ELEMENT_FLOAT32);
}

void outputs_free(outputs *o) {
    tensor_free(o->out);
    tensor_free(o->lse);
}

void assert_same_bits(const attention_call *a, const outputs *x, const outputs *y, const char *what) {
    int64_t out = tensor_first_difference(x->out, y->out), lse = tensor_first_difference(x->lse, y->lse);
    if (out >= 0)
        call_fail(a, "%s: out[%" PRId64 "] = %.9g and %.9g: must be the same bits", what, out, tensor_get(x->out, out),
                  tensor_get(y->out, out));
    if (lse >= 0)
        call_fail(a, "%s: lse[%" PRId64 "] = %.9g and %.9g: must be the same bits", what, lse, tensor_get(x->lse, lse),
                  tensor_get(y->lse, lse));
}

void assert_same_sequence(const attention_call *a, const outputs *x, int64_t n, const attention_call *b,
                          const outputs *y, int64_t m, int64_t first_row, const char *what) {
    call_sequence s = call_sequence_of(a, n);
    for (int64_t h = 0; h < a->c.heads; h++)
        for (int64_t i = 0; i < s.q_rows; i++) {
            int64_t to = call_q_number(a, x->out, n, h, i), from = call_q_number(b, y->out, m, h, first_row + i);
            for (int64_t c = 0; c < a->c.head_dim_v; c++)
                if (memcmp(tensor_address(x->out, to + c), tensor_address(y->out, from + c),
                           (size_t)x->out->element_bytes) != 0)
                    call_fail(a, "%s: sequence %" PRId64 ", head %" PRId64 ", row %" PRId64 ": out is %.9g and %.9g",
                              what, n, h, i, tensor_get(x->out, to + c), tensor_get(y->out, from + c));
            to = call_lse_number(a, x->lse, n, h, i);
            from = call_lse_number(b, y->lse, m, h, first_row + i);
            if (memcmp(tensor_address(x->lse, to), tensor_address(y->lse, from), 4) != 0)
                call_fail(a, "%s: sequence %" PRId64 ", head %" PRId64 ", row %" PRId64 ": lse is %.9g and %.9g", what,
                          n, h, i, tensor_get(x->lse, to), tensor_get(y->lse, from));
        }
}

/* ---- Errors ---- */

struct yardstick {
    answer out, lse;
};

/* ---- The yardstick ---- */

/* The same call with float32 copies of q, k and v. */
attention_call float32_copy(attention_call *a) {
    attention_call b = *a;
    const tensor *from[] = {a->q, a->k, a->v};
    tensor **to[] = {&b.q, &b.k, &b.v};
    b.c.type = FA_ELEMENT_FLOAT32;
    for (int t = 0; t < 3; t++) *to[t] = tensor_rounded(from[t], FA_ELEMENT_FLOAT32, &b.random);
    return b;
}

static void measure_standard(attention_call *a, yardstick *y) {
    outputs o = run_call(a, (contender){FA_KERNEL_STANDARD, FA_ISA_AUTO});
    standard_errors(a, &y->out, o.out);
    standard_errors(a, &y->lse, o.lse);
    outputs_free(&o);
}

yardstick *yardstick_new(attention_call *a) {
    yardstick *y = calloc(1, sizeof *y);
    assert_non_null(y);
    oracle *truth = oracle_new(a, FA_ELEMENT_FLOAT32);
    outputs o = run_with(a, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO}, FA_ELEMENT_FLOAT64, FA_ELEMENT_FLOAT64);
    assert_int_equal(tensor_count(o.out), truth->out_count);
    assert_int_equal(tensor_count(o.lse), truth->lse_count);
    y->out = (answer){.name = "out", .count = truth->out_count, .values = values_of(o.out)};
    y->lse = (answer){.name = "lse", .count = truth->lse_count, .values = values_of(o.lse)};
    y->out.sees_key = truth->sees_key;
    truth->sees_key = NULL;
    y->out.row_length = a->c.head_dim_v;
    check_reference(a, &y->out, truth->out, truth->out_unit, a->c.head_dim_v);
    check_reference(a, &y->lse, truth->lse, truth->lse_unit, 1);
    set_allowances(&y->out, truth->out_unit, a->c.head_dim_v);
    set_allowances(&y->lse, truth->lse_unit, 1);
    outputs_free(&o);
    oracle_free(truth);
    measure_standard(a, y);
    y->out.in_dtype = y->out.standard;
    y->lse.in_dtype = y->lse.standard;
    return y;
}

/* Half an ulp more for a 16-bit out, and the norms of all allowances. */
static void allow_last_rounding(const attention_call *a, answer *out) {
    out->rounded_last = !a->c.out_float32;
    out->allowances = (norms){0, 0};
    for (int64_t i = 0; i < out->count; i++) {
        if (out->rounded_last) out->allowance[i] += rounding_of(out->values[i], a->c.type);
        norms_add(&out->allowances, out->allowance[i]);
    }
}

void yardstick_to_float32(attention_call *a, yardstick *y) {
    if (a->c.type == FA_ELEMENT_FLOAT32) return;
    attention_call b = float32_copy(a);
    measure_standard(&b, y);
    tensor_free(b.q);
    tensor_free(b.k);
    tensor_free(b.v);
    allow_last_rounding(a, &y->out);
}

void yardstick_to_own_roundings(const attention_call *a, yardstick *y) {
    oracle *truth = oracle_new(a, a->c.type);
    free(y->out.allowance);
    free(y->lse.allowance);
    y->out.standard = y->lse.standard = y->lse.allowances = (norms){0, 0};
    set_allowances(&y->out, truth->out_unit, a->c.head_dim_v);
    set_allowances(&y->lse, truth->lse_unit, 1);
    allow_last_rounding(a, &y->out);
    oracle_free(truth);
}

void yardstick_free(yardstick *y) {
    free(y->out.values);
    free(y->out.allowance);
    free(y->out.sees_key);
    free(y->lse.values);
    free(y->lse.allowance);
    free(y);
}

double yardstick_out(const yardstick *y, int64_t number) { return y->out.values[number]; }
double yardstick_lse(const yardstick *y, int64_t number) { return y->lse.values[number]; }

/* ---- Judging ---- */

const char *fault_in_outputs(const yardstick *y, const outputs *o) {
    const char *wrong = fault_in_writing("out", o->out);
    if (wrong == NULL) wrong = fault_in_writing("lse", o->lse);
    if (wrong == NULL) wrong = fault_in_answer(&y->out, o->out);
    if (wrong == NULL) wrong = fault_in_answer(&y->lse, o->lse);
    return wrong;
}

/*
 * What a kernel that rounds weights to bfloat16 before their product with V may lose by that: half an ulp, up to 2^-8 of each,
 * and so 2^-8 times sum_j P_ij |v_j| of out, and another half ulp of a 16-bit out.
 */
static void allow_rounded_weights(const attention_call *a, answer *out) {
    attention_call copy = *a, b = float32_copy(&copy);
    for (int64_t i = 0; i < tensor_count(b.v); i++) tensor_put(b.v, i, fabs(tensor_get(b.v, i)));
    outputs o = run_with(&b, (contender){FA_KERNEL_REFERENCE, FA_ISA_AUTO}, FA_ELEMENT_FLOAT64, FA_ELEMENT_FLOAT64);
    for (int64_t i = 0; i < out->count; i++) out->allowance[i] += 0x1p-8 * tensor_get(o.out, i);
    allow_last_rounding(a, out);
    outputs_free(&o);
    tensor_free(b.q);
    tensor_free(b.k);
    tensor_free(b.v);
}

void judge_outputs(const attention_call *a, const yardstick *y, contender who, const outputs *o) {
    yardstick own = *y;
    if (rounds_weights(who, a->c.type)) own.out.standard = y->out.in_dtype;
    const char *wrong = fault_in_outputs(&own, o);
    if (wrong != NULL && rounds_weights(who, a->c.type)) { /* the standard kernel's error may be 0 by luck */
        size_t bytes = ((size_t)y->out.count + 1) * sizeof *own.out.allowance;
        own.out.allowance = malloc(bytes);
        assert_non_null(own.out.allowance);
        memcpy(own.out.allowance, y->out.allowance, bytes);
        allow_rounded_weights(a, &own.out);
        wrong = fault_in_outputs(&own, o);
        free(own.out.allowance);
    }
    if (wrong != NULL) call_fail(a, "%s: %s", contender_name(who), wrong);
}

void judge_call(attention_call *a) {
    call_poison_hidden(a);
    int count;
    const contender *all = contenders_of_type(a->c.type, &count);
    outputs o[CONTENDERS];
    yardstick *y = yardstick_new(a);
    for (int w = 0; w < count; w++) {
        o[w] = run_call(a, all[w]);
        judge_outputs(a, y, all[w], &o[w]);
    }
    yardstick_to_float32(a, y);
    for (int w = 0; w < count; w++) {
        judge_outputs(a, y, all[w], &o[w]);
        outputs_free(&o[w]);
    }
    yardstick_free(y);
}

void judge_case(const attention_case *c) {
    attention_call *a = call_new(c);
    judge_call(a);
    call_free(a);
}

void judge_case_all_types(attention_case c) {
    static const fa_element types[] = {FA_ELEMENT_FLOAT32, FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};
    for (int t = 0; t < 3; t++) {
        c.type = types[t];
        judge_case(&c);
    }
}
