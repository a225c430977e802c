/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU kernels in cases that have a name: public reports of what went wrong in such libraries, by their letter and number,
 * and queries that take no part in gradients. The same tests in the emulator and on a GPU.
 */
#ifndef FLASHATTN_TEST_GPU_NAMED_CASES_H
#define FLASHATTN_TEST_GPU_NAMED_CASES_H

#include "gpu_backward_cases.h"

/* More than one key tile of every kernel, in the one or the other type. */
attention_case gpu_named_case(const char *name, uint64_t index);

void A9_B1_bias_near_the_largest_number_is_a_value(void **test);
void G2_structured_inputs_wide_heads_and_a_batch(void **test);
void G4_groups_of_any_size_and_unequal_head_dims(void **test);
void G6_softcap(void **test);
void G8_K12_K13_gradients_of_sink_bias_and_slopes(void **test);
void G11_groups_causal_and_variable_length(void **test);
void L1_L3_strides_of_dout_are_its_own(void **test);
void queries_whose_lse_is_minus_infinity_contribute_nothing(void **test);
void keys_that_are_hidden_from_all_reach_nothing(void **test);
void without_a_query_that_takes_part_everything_is_zero(void **test);
void zero_sizes_give_zeros(void **test);

#define GPU_NAMED_FORWARD_CASES cmocka_unit_test(A9_B1_bias_near_the_largest_number_is_a_value)
#define GPU_NAMED_BACKWARD_CASES                                                                                      \
    cmocka_unit_test(G2_structured_inputs_wide_heads_and_a_batch),                                                    \
        cmocka_unit_test(G4_groups_of_any_size_and_unequal_head_dims), cmocka_unit_test(G6_softcap),                  \
        cmocka_unit_test(G8_K12_K13_gradients_of_sink_bias_and_slopes),                                               \
        cmocka_unit_test(G11_groups_causal_and_variable_length), cmocka_unit_test(L1_L3_strides_of_dout_are_its_own), \
        cmocka_unit_test(queries_whose_lse_is_minus_infinity_contribute_nothing),                                     \
        cmocka_unit_test(keys_that_are_hidden_from_all_reach_nothing),                                                \
        cmocka_unit_test(without_a_query_that_takes_part_everything_is_zero), cmocka_unit_test(zero_sizes_give_zeros)

#endif
