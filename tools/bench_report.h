/* SPDX-License-Identifier: Apache-2.0 */
/* The results of `flashattn bench` as a table, as JSON and as a plot. */
#ifndef FLASHATTN_TOOLS_BENCH_REPORT_H
#define FLASHATTN_TOOLS_BENCH_REPORT_H

#include "bench_case.h"

/* Refuses a list with more lines than a plot can show. Returns an exit code. */
int bench_report_check_plot(const bench_list *list);

/* json and plot are paths or NULL. Returns an exit code. */
int bench_report(const bench_list *list, const char *json, const char *plot);

#endif
