/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages: see message.h. */
#include "message.h"

#include "flashattn.h"

#include <stdarg.h>
#include <stdio.h>

static const char *command_name;

void message_set_command(const char *name) { command_name = name; }

static void print_prefix(void) {
    (void)fprintf(stderr, "flashattn%s%s: ", command_name ? " " : "", command_name ? command_name : "");
}

int fail_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_prefix();
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, " (see flashattn%s%s --help)\n", command_name ? " " : "", command_name ? command_name : "");
    va_end(arguments);
    return EXIT_CODE_USAGE;
}

int fail_file(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_prefix();
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    return EXIT_CODE_FILE;
}

int fail_memory(const char *what) {
    print_prefix();
    (void)fprintf(stderr, "no memory for %s\n", what);
    return EXIT_CODE_LIBRARY;
}

int fail_library(void) {
    print_prefix();
    (void)fprintf(stderr, "%s\n", fa_last_error());
    return EXIT_CODE_LIBRARY;
}
