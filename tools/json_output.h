/* SPDX-License-Identifier: Apache-2.0 */
/* JSON, to a file (atomically) or to standard output. */
#ifndef FLASHATTN_TOOLS_JSON_OUTPUT_H
#define FLASHATTN_TOOLS_JSON_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>

/* path "-": standard output. Takes over the reference to value, which may be NULL (out of memory). Returns an
 * exit code. */
int json_write(const char *path, json_t *value);

/* Whether standard output belongs to JSON, so that nothing else may be printed there. */
bool json_on_stdout(const char *path);

/* A number rounded to six significant digits, so that files stay readable. */
json_t *json_rounded(double x);

#endif
