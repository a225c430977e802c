/* SPDX-License-Identifier: Apache-2.0 */
/* `flashattn bench --ceilings`: what this machine can do at most, apart from any kernel. */
#ifndef FLASHATTN_TOOLS_BENCH_CEILINGS_H
#define FLASHATTN_TOOLS_BENCH_CEILINGS_H

/* Measures for about `seconds` and prints a table, or JSON to a file or "-" (standard output, no table); json == NULL: only
 * the table. Returns an exit code. */
int bench_ceilings(int threads, double seconds, const char *json);

#endif
