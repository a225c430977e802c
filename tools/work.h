/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulated GPU of FLASHATTN_MACHINE has done, for people: quantities of fa_machine_work by name and unit. */
#ifndef FLASHATTN_TOOLS_WORK_H
#define FLASHATTN_TOOLS_WORK_H

#include "flashattn.h"

#include <jansson.h>

/* Work since the process began. Returns an exit code. */
int work_read(fa_machine_work *work);
/* What came after `before`, for each of `calls` equal calls. */
void work_subtract(fa_machine_work *work, const fa_machine_work *before, int64_t calls);

/* The table's row `index`; NULL behind the last. */
const char *work_name(int index);      /* "global memory, read" */
const char *work_json_name(int index); /* "global_bytes_read" */
/* "12.6 MB", "0.54 GFLOP", "1,048,576" */
void work_text(const fa_machine_work *work, int index, char *text, size_t size);
json_t *work_json(const fa_machine_work *work);

#endif
