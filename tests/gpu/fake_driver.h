/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a GPU: it keeps the rules that a caller of the driver can break (current context, capture
 * mode, known functions), can be told to fail, and remembers what it was asked. Programs that link it get it from
 * dlopen("libcuda.so.1").
 *
 * Device 0 is an H200, device 1 an A100, device 2 an RTX 4090 (sm_89, 99 KiB of shared memory), device 3 an H100.
 */
#ifndef FLASHATTN_FAKE_DRIVER_H
#define FLASHATTN_FAKE_DRIVER_H

#include "gpu/driver.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct fake_driver {
    atomic_int retained; /* primary contexts */
    atomic_int loaded;   /* modules */
    atomic_int launched;
    atomic_int allocated; /* workspaces that live */
    bool capturing;       /* calls that stream capture forbids fail unless the thread's mode is relaxed */
    const char *fail_call;
    fa_cu_result fail_result;

    /* The last launch. */
    fa_cu_launch_config config;
    fa_cu_launch_attribute attribute;
    char function[64];
    unsigned char params[64]; /* their first bytes */
    int max_dynamic_shared_bytes;
    uint64_t pool_keeps;
} fake_driver;

__attribute__((visibility("default"))) fake_driver *fake_driver_state(void);
/* Makes a context current in this thread, as an application that uses CUDA has one; and which one is. */
__attribute__((visibility("default"))) void fake_driver_set_current(fa_cu_context context);
__attribute__((visibility("default"))) fa_cu_context fake_driver_current(void);
__attribute__((visibility("default"))) int fake_driver_capture_mode(void);

#endif
