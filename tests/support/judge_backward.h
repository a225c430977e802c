/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether gradients are right, by the rule of judge.h: for each gradient by itself, twice the error of the standard
 * kernel plus the rounding units of oracle_backward.h. All contenders, the standard kernel and the reference get the
 * same dout, out and lse, so that only backward is judged.
 *
 * Besides: NaN exactly where the reference has it; exactly 0 where no pair touches an element; every element written,
 * no other byte; inputs untouched.
 */
#ifndef FLASHATTN_TEST_JUDGE_BACKWARD_H
#define FLASHATTN_TEST_JUDGE_BACKWARD_H

#include "judge.h"
#include "oracle_backward.h"

/* A call with what fa_backward takes besides: out and lse as fa_forward gives them, a random dout. */
typedef struct backward_call {
    attention_call *a;
    tensor *dout, *out, *lse;
} backward_call;

backward_call *backward_call_new(const attention_case *c);
void backward_call_free(backward_call *b);

/* The CPU kernel on every instruction set of this machine, those that only backward has among them. */
enum { BACKWARD_CONTENDERS = CONTENDERS + 1 };
const contender *backward_contenders(int *count);

/* Fills dout, out and lse of queries that see no key, and all that call_poison_hidden() does, with NaN. */
void backward_call_poison(backward_call *b);

/* Poisoned outputs; NULL where the call has no such tensor. */
typedef struct gradients {
    tensor *of[GRADIENTS];
} gradients;

/* Runs the call and fails the test unless it returns FA_OK, wrote every element and no other byte, and left the inputs
 * as they were. */
gradients run_backward(backward_call *b, contender who);
/* The same with outputs of a given dtype. */
gradients run_backward_to(backward_call *b, contender who, fa_element type);
void gradients_free(gradients *g);

/* The status alone, with outputs that the caller holds. */
fa_status call_backward(const backward_call *b, const fa_options *options, const gradients *g);

void assert_same_gradients(const backward_call *b, const gradients *x, const gradients *y, const char *what);

typedef struct backward_yardstick {
    answer of[GRADIENTS];
    /* For kernels that round P and dS: the standard kernel's errors in the inputs' dtype, and what is allowed
     * besides. */
    answer rounded[GRADIENTS];
} backward_yardstick;

backward_yardstick *backward_yardstick_new(backward_call *b);
/* See yardstick_to_float32(). */
void backward_yardstick_to_float32(backward_call *b, backward_yardstick *y);
void backward_yardstick_free(backward_yardstick *y);
const char *fault_in_gradients(const backward_call *b, const backward_yardstick *y, contender who, const gradients *g);

/* All of it, for every contender and by both standards. Poisons what must not be read first. */
void judge_backward_call(backward_call *b);
void judge_backward(const attention_case *c);
void judge_backward_all_types(attention_case c);

#endif
