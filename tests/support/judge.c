/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an answer is right: see judge.h. */
#include "judge.h"

#include "oracle.h"
#include "testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FACTOR 2.0      /* times the standard kernel's error */
#define FLOOR_UNITS 4.0 /* rounding units */

const contender *contenders(int *count) {
    static contender all[CONTENDERS];
    *count = 0;
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_AMX; isa++)
        if (fa_isa_supported((fa_isa)isa) == FA_OK) all[(*count)++] = (contender){FA_KERNEL_CPU, (fa_isa)isa};
    return all;
}

bool rounds_weights(contender who, fa_element type) {
    bool may =
        who.isa >= FA_ISA_AVX512_BF16 || (who.isa == FA_ISA_AUTO && fa_isa_supported(FA_ISA_AVX512_BF16) == FA_OK);
    return who.kernel == FA_KERNEL_CPU && may && type == FA_ELEMENT_BFLOAT16;
}

fa_isa runs_as(fa_isa isa, fa_element type) {
    return isa > FA_ISA_AVX512 && type != FA_ELEMENT_BFLOAT16 ? FA_ISA_AVX512 : isa;
}

static const char *name_of(contender who) {
    return who.kernel == FA_KERNEL_CPU ? fa_isa_name(who.isa) : fa_kernel_name(who.kernel);
}

/* ---- Running ---- */

static uint64_t inputs_checksum(const attention_call *a) {
    const tensor *all[] = {a->q,    a->k,    a->v,         a->alibi,     a->sink,      a->bias,       a->mask,
                           a->cu_q, a->cu_k, a->seqused_q, a->seqused_k, a->leftpad_k, a->block_table};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] != NULL) sum = sum * 31 + tensor_checksum(all[i]);
    return sum;
}

/* A verdict: NULL if all is well, else what is wrong, good until the next one. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static const char *
fault(const char *format, ...) {
    static char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

static const char *fault_in_writing(const char *name, const tensor *t) {
    int64_t unwritten = tensor_first_poisoned(t);
    if (unwritten >= 0) return fault("%s: element %" PRId64 " was not written", name, unwritten);
    if (!tensor_canaries_intact(t)) return fault("wrote outside the elements of %s", name);
    return NULL;
}

static outputs run_with(attention_call *a, contender who, fa_element out_type, fa_element lse_type) {
    outputs o = {call_new_out(a, out_type), call_new_lse(a, lse_type)};
    fa_options options = a->options;
    options.kernel = who.kernel;
    options.isa = who.isa;
    if (who.kernel != FA_KERNEL_CPU) options.num_splits = 0;
    uint64_t before = inputs_checksum(a);
    fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &options, &o.out->fa, &o.lse->fa);
    if (status != FA_OK) call_fail(a, "%s: %s: %s", name_of(who), fa_status_text(status), fa_last_error());
    if (inputs_checksum(a) != before) call_fail(a, "%s: an input was written", name_of(who));
    const char *wrong = fault_in_writing("out", o.out);
    if (wrong == NULL) wrong = fault_in_writing("lse", o.lse);
    if (wrong != NULL) call_fail(a, "%s: %s", name_of(who), wrong);
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

typedef struct norms {
    double max, frobenius;
} norms;

/* What is known about out, or about lse, before a contender is looked at. */
typedef struct answer {
    const char *name;
    int64_t count;
    double *values;    /* the reference's */
    double *allowance; /* of each element, besides the standard kernel's error */
    norms allowances;
    norms standard;    /* error of the standard kernel */
    norms in_dtype;    /* the same, always in the inputs' dtype */
    bool rounded_last; /* the allowance holds the half ulp of a 16-bit out, which is always used up */
    bool *sees_key;    /* of each row of out, by the oracle; lse: NULL */
    int64_t row_length;
} answer;

struct yardstick {
    answer out, lse;
};

static void norms_add(norms *n, double x) {
    if (x > n->max) n->max = x;
    n->frobenius = hypot(n->frobenius, x); /* hypot: near the largest numbers squares overflow */
}

/* Whether x is NaN, infinite or finite where the reference is. An infinite output may turn NaN on its way: a
 * weight too small for float32 times infinity. */
static bool same_kind(const answer *reference, double expected, double x) {
    if (isfinite(expected)) return isfinite(x);
    if (isnan(expected)) return isnan(x);
    return reference->sees_key == NULL ? x == expected : !isfinite(x);
}

static const char *fault_in_kind(const answer *reference, const tensor *t) {
    for (int64_t i = 0; i < reference->count; i++) {
        double expected = reference->values[i], x = tensor_get(t, i);
        if (!same_kind(reference, expected, x))
            return fault("%s[%" PRId64 "] = %g, and the reference has %.9g", reference->name, i, x, expected);
        if (reference->sees_key != NULL && !reference->sees_key[i / reference->row_length] && !(x == 0))
            return fault("out[%" PRId64 "] = %g: its row sees no key, and must be exactly 0", i, x);
    }
    return NULL;
}

/* For infinite and NaN elements, which fault_in_kind() has compared, 0. */
static double error_of(const answer *reference, const tensor *t, int64_t i) {
    return isfinite(reference->values[i]) ? fabs(tensor_get(t, i) - reference->values[i]) : 0;
}

static norms errors_of(const answer *reference, const tensor *t) {
    norms n = {0, 0};
    for (int64_t i = 0; i < reference->count; i++) norms_add(&n, error_of(reference, t, i));
    return n;
}

/* ---- The yardstick ---- */

static double *values_of(const tensor *t) {
    int64_t count = tensor_count(t);
    double *values = calloc((size_t)count + 1, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = tensor_get(t, i);
    return values;
}

/* The reference has only float64's own errors: 2^-29 of float32's, and some where float32 would be exact. */
static void check_reference(const attention_call *a, const answer *reference, const double *oracle_values,
                            const double *units, int64_t per_unit) {
    for (int64_t i = 0; i < reference->count; i++) {
        double x = reference->values[i], expected = oracle_values[i];
        double allowed = 64 * units[i / per_unit] * 0x1p-29 + 1e-11 * fabs(expected) + 1e-300;
        if (isnan(x) != isnan(expected) || isinf(x) != isinf(expected) || (isinf(x) && (x > 0) != (expected > 0)) ||
            (isfinite(x) && !(fabs(x - expected) <= allowed)))
            call_fail(a, "reference: %s[%" PRId64 "] = %.17g, and the oracle has %.17g (allowed: %.3g)",
                      reference->name, i, x, expected, allowed);
    }
}

/* Half an ulp of a 16-bit format at x. */
static double rounding_of(double x, fa_element type) {
    if (x == 0 || !isfinite(x)) return 0;
    int bits = type == FA_ELEMENT_FLOAT16 ? 11 : 8, lowest = type == FA_ELEMENT_FLOAT16 ? -24 : -133;
    int exponent = ilogb(x) + 1 - bits;
    return ldexp(0.5, exponent < lowest ? lowest : exponent);
}

/* The same call with float32 copies of q, k and v. */
static attention_call float32_copy(attention_call *a) {
    attention_call b = *a;
    const tensor *from[] = {a->q, a->k, a->v};
    tensor **to[] = {&b.q, &b.k, &b.v};
    b.c.type = FA_ELEMENT_FLOAT32;
    for (int t = 0; t < 3; t++) {
        *to[t] = tensor_new((fa_dtype)FA_FLOAT32, from[t]->fa.ndim, from[t]->shape, LAYOUT_COMPACT, true, &b.random);
        int64_t count = tensor_count(from[t]);
        for (int64_t i = 0; i < count; i++) tensor_put(*to[t], i, tensor_get(from[t], i));
    }
    return b;
}

static void standard_errors(attention_call *a, answer *reference, const tensor *t) {
    const char *wrong = fault_in_kind(reference, t);
    reference->standard = errors_of(reference, t);
    if (wrong == NULL) return;
    /* Logits beyond a 16-bit format's range are infinite to the standard kernel: no yardstick then, and the
     * one in float32 decides. */
    if (a->c.type == FA_ELEMENT_FLOAT32) call_fail(a, "standard: %s", wrong);
    reference->standard = (norms){(double)INFINITY, (double)INFINITY};
}

static void measure_standard(attention_call *a, yardstick *y) {
    outputs o = run_call(a, (contender){FA_KERNEL_STANDARD, FA_ISA_AUTO});
    standard_errors(a, &y->out, o.out);
    standard_errors(a, &y->lse, o.lse);
    outputs_free(&o);
}

static void set_allowances(answer *x, const double *units, int64_t per_unit) {
    x->allowance = calloc((size_t)x->count + 1, sizeof *x->allowance);
    assert_non_null(x->allowance);
    for (int64_t i = 0; i < x->count; i++) {
        x->allowance[i] = FLOOR_UNITS * units[i / per_unit];
        norms_add(&x->allowances, x->allowance[i]);
    }
}

yardstick *yardstick_new(attention_call *a) {
    yardstick *y = calloc(1, sizeof *y);
    assert_non_null(y);
    oracle *truth = oracle_new(a);
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

void yardstick_to_float32(attention_call *a, yardstick *y) {
    if (a->c.type == FA_ELEMENT_FLOAT32) return;
    attention_call b = float32_copy(a);
    measure_standard(&b, y);
    tensor_free(b.q);
    tensor_free(b.k);
    tensor_free(b.v);
    y->out.rounded_last = !a->c.out_float32;
    y->out.allowances = (norms){0, 0};
    for (int64_t i = 0; i < y->out.count; i++) {
        if (y->out.rounded_last) y->out.allowance[i] += rounding_of(y->out.values[i], a->c.type);
        norms_add(&y->out.allowances, y->out.allowance[i]);
    }
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

static double worst_share;

double judge_worst_share(void) { return worst_share; }

static bool within(const answer *reference, double error, double allowed) {
    if (!reference->rounded_last && allowed > 0 && error / allowed > worst_share) worst_share = error / allowed;
    return error <= allowed;
}

static const char *fault_in_answer(const answer *reference, const tensor *t) {
    const char *wrong = fault_in_kind(reference, t);
    for (int64_t i = 0; i < reference->count && wrong == NULL; i++) {
        double error = error_of(reference, t, i), allowed = FACTOR * reference->standard.max + reference->allowance[i];
        if (!within(reference, error, allowed))
            wrong = fault("%s[%" PRId64 "] = %.9g, reference %.17g: error %.4g > %.4g = %g * the standard kernel's "
                          "%.4g + %.4g for rounding",
                          reference->name, i, tensor_get(t, i), reference->values[i], error, allowed, FACTOR,
                          reference->standard.max, reference->allowance[i]);
    }
    if (wrong != NULL) return wrong;
    double error = errors_of(reference, t).frobenius;
    double allowed = FACTOR * reference->standard.frobenius + reference->allowances.frobenius;
    if (within(reference, error, allowed)) return NULL;
    return fault("%s: the error's Frobenius norm is %.4g > %.4g = %g * the standard kernel's %.4g + %.4g for rounding",
                 reference->name, error, allowed, FACTOR, reference->standard.frobenius,
                 reference->allowances.frobenius);
}

const char *fault_in_outputs(const yardstick *y, const outputs *o) {
    const char *wrong = fault_in_writing("out", o->out);
    if (wrong == NULL) wrong = fault_in_writing("lse", o->lse);
    if (wrong == NULL) wrong = fault_in_answer(&y->out, o->out);
    if (wrong == NULL) wrong = fault_in_answer(&y->lse, o->lse);
    return wrong;
}

void judge_outputs(const attention_call *a, const yardstick *y, contender who, const outputs *o) {
    yardstick own = *y;
    if (rounds_weights(who, a->c.type)) own.out.standard = y->out.in_dtype;
    const char *wrong = fault_in_outputs(&own, o);
    if (wrong != NULL) call_fail(a, "%s: %s", name_of(who), wrong);
}

void judge_call(attention_call *a) {
    call_poison_hidden(a);
    int count;
    const contender *all = contenders(&count);
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
