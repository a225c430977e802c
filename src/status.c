/* SPDX-License-Identifier: Apache-2.0 */
/* Errors in words, and the version. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[2304]; /* the emulator lists who waits for what */

fa_status fa_fail(fa_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *fa_last_error(void) { return last_error; }

const char *fa_status_text(fa_status status) {
    switch (status) {
    case FA_OK: return "success";
    case FA_INVALID_ARGUMENT: return "invalid argument";
    case FA_UNSUPPORTED: return "not supported";
    case FA_OUT_OF_MEMORY: return "out of memory";
    case FA_DEVICE_ERROR: return "device error";
    }
    return "unknown status";
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

int fa_version(void) { return FA_VERSION; }

const char *fa_version_text(void) { return VERSION_TEXT(FA_VERSION_MAJOR, FA_VERSION_MINOR, FA_VERSION_PATCH); }
