/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/backward.h"

#include "status.h"

fa_status fa_cpu_backward_plan_make(const fa_gradients *g, fa_cpu_backward_plan *plan) {
    (void)g, (void)plan;
    return fa_fail(FA_UNSUPPORTED, "kernel = cpu: has no backward pass yet");
}

fa_status fa_cpu_backward(const fa_gradients *g, const fa_cpu_backward_plan *plan) {
    (void)g, (void)plan;
    return FA_UNSUPPORTED;
}
