/* SPDX-License-Identifier: Apache-2.0 */
/* Exit codes of the command, and its error messages: one sentence on stderr that says what, its value and the
 * rule. */
#ifndef FLASHATTN_TOOLS_MESSAGE_H
#define FLASHATTN_TOOLS_MESSAGE_H

/* `flashattn --help` prints this list. */
enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_CHECK_FAILED = 1, /* check: an error is over its budget */
    EXIT_CODE_USAGE = 2,        /* the command line is wrong */
    EXIT_CODE_FILE = 3,         /* a file cannot be read, understood or written */
    EXIT_CODE_LIBRARY = 4       /* the library refused the request or failed */
};

/* Named in every message from now on: "run". NULL: none chosen yet. Must outlive all messages. */
void message_set_command(const char *name);

/* Each prints "flashattn run: sentence" and returns its exit code. */
int fail_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fail_file(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fail_memory(const char *what);
/* The sentence is fa_last_error(). */
int fail_library(void);

#endif
