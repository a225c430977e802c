/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine calls itself. */
#ifndef FLASHATTN_TOOLS_MACHINE_H
#define FLASHATTN_TOOLS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

/* The processor's name, "unknown processor" if the system does not tell. */
void machine_name(char *text, size_t size);
/* CPUs in this process's affinity mask. */
int machine_cpus(void);
/* Whether the machine has been busy during the last minute, so that measurements vary; *load is the average
 * number of processes that wanted to run. False where the system does not tell. */
bool machine_is_busy(double *load);

#endif
