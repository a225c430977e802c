/* SPDX-License-Identifier: Apache-2.0 */
/* How functions inside the library report a failure: a status and one sentence for fa_last_error(). */
#ifndef FA_STATUS_H
#define FA_STATUS_H

#include "flashattn.h"

/* Stores the sentence for this thread (cut at 511 bytes) and returns the status. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
fa_status
fa_fail(fa_status status, const char *format, ...);

#endif
