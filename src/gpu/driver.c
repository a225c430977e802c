/* SPDX-License-Identifier: Apache-2.0 */
/* Opens libcuda once, and puts its errors into words. */
#include "gpu/driver.h"

#include "status.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

static fa_driver driver_table;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static char driver_missing[256]; /* why there is no driver; "" if there is one */

static void missing(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void missing(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(driver_missing, sizeof driver_missing, format, arguments);
    va_end(arguments);
}

static const char *error_name(const fa_driver *driver, fa_cu_result result) {
    const char *name = NULL;
    return driver->cuGetErrorName(result, &name) == FA_CU_SUCCESS && name != NULL ? name : "unknown error";
}

/*
 * Written before any other thread can read it, never after. The library stays open as long as the process lives:
 * kernels, contexts and other users of CUDA depend on it.
 */
static void driver_open(void) {
    fa_driver *d = &driver_table;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        missing("no CUDA driver: %s", reason != NULL ? reason : LIBRARY " could not be opened");
        return;
    }
    const struct {
        const char *symbol;
        void *field;
    } functions[] = {
#define FA_DRIVER_ROW(name, symbol, parameters) {symbol, &d->name},
        FA_DRIVER_FUNCTIONS(FA_DRIVER_ROW)
#undef FA_DRIVER_ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (address == NULL) {
            missing("the CUDA driver is too old: %s has no %s (CUDA 12.0 has)", LIBRARY, functions[i].symbol);
            return;
        }
        memcpy(functions[i].field, &address,
               sizeof address); /* C has no conversion from an object to a function pointer */
    }
    fa_cu_result result = d->cuInit(0);
    if (result == FA_CU_SUCCESS) result = d->cuDriverGetVersion(&d->version);
    if (result == FA_CU_SUCCESS) result = d->cuDeviceGetCount(&d->device_count);
    if (result == FA_CU_ERROR_NO_DEVICE || (result == FA_CU_SUCCESS && d->device_count == 0))
        missing("the CUDA driver sees no GPU");
    else if (result != FA_CU_SUCCESS)
        missing("the CUDA driver does not start: cuInit returned %d (%s)", result, error_name(d, result));
}

fa_status fa_driver_get(const fa_driver **driver) {
    (void)pthread_once(&driver_once, driver_open);
    if (driver_missing[0] != '\0') return fa_fail(FA_UNSUPPORTED, "%s", driver_missing);
    *driver = &driver_table;
    return FA_OK;
}

fa_status fa_driver_fail(const fa_driver *driver, fa_cu_result result, const char *call, const char *doing, ...) {
    char what[160];
    const char *text = NULL;
    va_list arguments;
    va_start(arguments, doing);
    (void)vsnprintf(what, sizeof what, doing, arguments);
    va_end(arguments);
    if (driver->cuGetErrorString(result, &text) != FA_CU_SUCCESS || text == NULL) text = "no description";
    fa_status status = FA_DEVICE_ERROR;
    if (result == FA_CU_ERROR_OUT_OF_MEMORY) status = FA_OUT_OF_MEMORY;
    if (result == FA_CU_ERROR_NO_BINARY_FOR_GPU || result == FA_CU_ERROR_UNSUPPORTED_PTX_VERSION)
        status = FA_UNSUPPORTED;
    return fa_fail(status, "%s failed with %s (%s) while %s", call, error_name(driver, result), text, what);
}
