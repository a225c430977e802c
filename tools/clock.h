/* SPDX-License-Identifier: Apache-2.0 */
/* Time as every measurement here takes it. */
#ifndef FLASHATTN_TOOLS_CLOCK_H
#define FLASHATTN_TOOLS_CLOCK_H

/* Seconds since some fixed moment; never goes back. */
double now_seconds(void);

#endif
