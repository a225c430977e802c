/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether an answer is right. The rule, for out and lse alike, against the float64 reference:
 *
 *     |error| of each element     <= 2 * the largest of the standard kernel + 4 * the rounding unit there
 *     |error| (Frobenius norms)   <= 2 * that of the standard kernel + 4 * that of the rounding units
 *
 * The standard kernel (FA_KERNEL_STANDARD) is attention as written before FlashAttention, in the inputs'
 * dtype. On a handful of elements its error is a matter of luck and may be 0. The rounding unit (oracle.h), a
 * few 1e-7 for unit normal inputs, stands for what float32 is entitled to even then: each rounding is at most
 * its unit and spread evenly below, so that 4 are some 7 standard deviations.
 *
 * Besides: NaN exactly where the reference has it, never where it is finite; an infinity for a finite number only where
 * float16 has nothing nearer; O = 0 and lse = -inf exactly
 * where no key is seen; every element written, no other byte; inputs untouched.
 *
 * The reference itself is held against the oracle each time.
 */
#ifndef FLASHATTN_TEST_JUDGE_H
#define FLASHATTN_TEST_JUDGE_H

#include "answer.h"
#include "attention_case.h"

/* A way to compute that is to be judged. */
typedef struct contender {
    fa_kernel kernel;
    fa_isa isa;
} contender;

enum { CONTENDERS = 6 }; /* at most */

const char *contender_name(contender who);

/* Of q, k, v and all tensors among the options: to see that no call writes an input. */
uint64_t inputs_checksum(const attention_call *a);
/* The same call with float32 copies of q, k and v, which are the caller's to free. */
attention_call float32_copy(attention_call *a);

/* The CPU kernel on every instruction set of this machine. */
const contender *contenders(int *count);
/* Those of them that have operands of this dtype: the others stand for one of these. */
const contender *contenders_of_type(fa_element type, int *count);

/* Whether it rounds weights to the inputs' dtype, as the standard kernel does, by which its out is judged then. Its lse is
 * held to the promise of float32. */
bool rounds_weights(contender who, fa_element type);

/* What fa_plan() says of an instruction set: FA_ISA_AVX512_BF16 and FA_ISA_NEON_BF16 serve bfloat16 alone. */
fa_isa runs_as(fa_isa isa, fa_element type);

typedef struct yardstick yardstick;

/* Runs the reference and, in the inputs' dtype, the standard kernel. */
yardstick *yardstick_new(attention_call *a);
/* From here on the standard kernel's error is that for the same values in float32, and half an ulp is granted
 * for the last rounding to a 16-bit out. That is what the promise of float32 accumulation means, and some 100
 * times as strict. */
void yardstick_to_float32(attention_call *a, yardstick *y);
/*
 * From here on the rule is 4 rounding units for a kernel that holds scores and weights in the inputs' 16-bit dtype: for
 * the standard kernel elsewhere, of which its own error here is no measure. A score half-way between two numbers of the
 * dtype is rounded up by one and down by the other, and where a row sees few keys this makes an error several times
 * as large.
 */
void yardstick_to_own_roundings(const attention_call *a, yardstick *y);
void yardstick_free(yardstick *y);

/* Outputs of one run. */
typedef struct outputs {
    tensor *out, *lse;
} outputs;

/* Runs the call and fails the test unless it returns FA_OK, wrote every element and no other byte, and left
 * the inputs as they were. */
outputs run_call(attention_call *a, contender who);
void outputs_free(outputs *o);

/* What is wrong with the outputs by the rule, good until the next call; NULL: nothing. */
const char *fault_in_outputs(const yardstick *y, const outputs *o);
/* Fails the test with it. A kernel that rounds weights to bfloat16 is granted what that may cost, if it needs it. */
void judge_outputs(const attention_call *a, const yardstick *y, contender who, const outputs *o);

/* All of it, for every contender and by both standards. Poisons what must not be read first. */
void judge_call(attention_call *a);
void judge_case(const attention_case *c);
/* In all three dtypes. */
void judge_case_all_types(attention_case c);

/* Fails the test unless out and lse are the same bits. */
void assert_same_bits(const attention_call *a, const outputs *x, const outputs *y, const char *what);

/* Fails the test unless the results of sequence n of a are, bit for bit, those of sequence m of b from row
 * first_row on. */
void assert_same_sequence(const attention_call *a, const outputs *x, int64_t n, const attention_call *b,
                          const outputs *y, int64_t m, int64_t first_row, const char *what);

/* The reference's float64 answer, elements numbered as in out and lse. */
double yardstick_out(const yardstick *y, int64_t number);
double yardstick_lse(const yardstick *y, int64_t number);

#endif
