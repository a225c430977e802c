/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON: see json_output.h. */
#include "json_output.h"

#include "io/atomic_output.h"
#include "message.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool json_on_stdout(const char *path) { return path != NULL && strcmp(path, "-") == 0; }

json_t *json_rounded(double x) {
    char text[32];
    if (!isfinite(x)) return json_null(); /* JSON has no NaN and no infinity */
    (void)snprintf(text, sizeof text, "%.6g", x);
    return json_real(strtod(text, NULL));
}

static int write_file(const char *path, const char *text) {
    fa_atomic_output output;
    fa_file_error error;
    if (fa_atomic_output_open(&output, path, &error) != FA_FILE_OK) return fail_file("%s", error.text);
    if (fa_atomic_output_write(&output, text, strlen(text), &error) != FA_FILE_OK ||
        fa_atomic_output_write(&output, "\n", 1, &error) != FA_FILE_OK) {
        fa_atomic_output_discard(&output);
        return fail_file("%s", error.text);
    }
    return fa_atomic_output_commit(&output, &error) == FA_FILE_OK ? EXIT_CODE_OK : fail_file("%s", error.text);
}

int json_write(const char *path, json_t *value) {
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(value);
    if (text == NULL) return fail_memory("the JSON text");
    int code = EXIT_CODE_OK;
    if (json_on_stdout(path))
        (void)printf("%s\n", text);
    else
        code = write_file(path, text);
    free(text);
    return code;
}
