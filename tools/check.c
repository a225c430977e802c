/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of `flashattn check` share: see check.h. */
#include "check.h"

#include <math.h>
#include <stdio.h>

const fa_kernel checked_kernels[CHECKED_KERNELS] = {FA_KERNEL_CPU, FA_KERNEL_V1, FA_KERNEL_V2, FA_KERNEL_V3,
                                                    FA_KERNEL_V4};

bool check_isa_chosen(const check_settings *s, const attention *a, int isa) {
    fa_element type = FA_ELEMENT_FLOAT32;
    (void)element_of_dtype(a->q.t.dtype, &type);
    if (s->isas == 0 || s->isas == OPTION_CHOICES_ALL)
        return isa != FA_ISA_AUTO && isa_serves((fa_isa)isa, type) && fa_isa_supported((fa_isa)isa) == FA_OK;
    return (s->isas >> isa & 1) != 0;
}

bool check_kernel_chosen(const check_settings *s, int index) {
    if (s->kernels == 0) return checked_kernels[index] == FA_KERNEL_CPU;
    if (s->kernels == OPTION_CHOICES_ALL) return fa_kernel_supported(checked_kernels[index]) == FA_OK;
    return (s->kernels >> index & 1) != 0;
}

void check_name(fa_kernel kernel, fa_isa isa, char *text, size_t size) {
    (void)snprintf(text, size, "%s%s%s", fa_kernel_name(kernel), isa == FA_ISA_AUTO ? "" : " ",
                   isa == FA_ISA_AUTO ? "" : fa_isa_name(isa));
}

static double load(const tensor *t, const int64_t *index) {
    fa_element element = FA_ELEMENT_FLOAT32;
    (void)element_of_dtype(t->t.dtype, &element);
    return fa_element_load(tensor_address(&t->t, index), element);
}

/* Steps an index through a shape; false behind the last element. */
static bool next_index(const tensor *t, int64_t *index) {
    for (int32_t i = t->t.ndim - 1; i >= 0; i--) {
        if (++index[i] < t->shape[i]) return true;
        index[i] = 0;
    }
    return false;
}

error_size error_between(const tensor *x, const tensor *reference) {
    error_size e = {0, 0, 0};
    double squares = 0, reference_squares = 0;
    int64_t index[TENSOR_MAX_NDIM] = {0};
    if (tensor_elements(&reference->t) == 0) return e;
    do {
        double a = load(x, index), b = load(reference, index);
        double difference = a == b ? 0 : fabs(a - b);
        if (!(difference <= e.max)) e.max = difference; /* NaN comes in here, and +inf and NaN stay */
        if (isnan(difference)) e.max = (double)NAN;
        squares += difference * difference;
        if (isfinite(b)) {
            reference_squares += b * b;
            e.largest = fmax(e.largest, fabs(b));
        }
        if (isnan(e.max)) break;
    } while (next_index(reference, index));
    e.frobenius = isnan(e.max) ? e.max : squares > 0 ? sqrt(squares / reference_squares) : 0;
    return e;
}

void check_step(check_report *r, const char *label) {
    r->bar.drawn = -1; /* steps are long: show each */
    progress_update(&r->bar, r->done, label);
    r->done += 1;
}
