/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines, driven by tables: an option is defined once, and parsing, range checks, --help and the hint
 * for a misspelt name all read that definition. Groups let commands share options.
 */
#ifndef FLASHATTN_TOOLS_OPTIONS_H
#define FLASHATTN_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTION_LIST_MAX 32

/* What an option stores at its offset. Commands set defaults before parsing. */
typedef enum option_kind {
    OPTION_FLAG,         /* bool */
    OPTION_INTEGER,      /* option_integer */
    OPTION_NUMBER,       /* option_number, finite in float32 */
    OPTION_TEXT,         /* const char *, NULL if not given */
    OPTION_CHOICE,       /* int: the index of the choice */
    OPTION_INTEGER_LIST, /* option_integer_list */
    OPTION_CHOICE_LIST   /* uint32_t: one bit per choice; OPTION_CHOICES_ALL for "all"; 0 if not given */
} option_kind;

typedef struct option_integer {
    int64_t value;
    bool given;
} option_integer;

typedef struct option_number {
    double value;
    bool given;
} option_number;

typedef struct option_integer_list {
    int64_t values[OPTION_LIST_MAX];
    size_t count; /* 0: not given */
} option_integer_list;

#define OPTION_CHOICES_ALL UINT32_MAX

typedef struct option {
    const char *name; /* without the dashes */
    char letter;      /* 'o': also -o; '\0': none */
    option_kind kind;
    size_t offset;           /* of the value in its group's target */
    const char *placeholder; /* in --help, of options that take a value */
    const char *help;
    int64_t min, max;                  /* OPTION_INTEGER, OPTION_INTEGER_LIST; both 0: any */
    const char *(*choices)(int index); /* OPTION_CHOICE, OPTION_CHOICE_LIST: the spelling; NULL behind the last */
} option;

typedef struct option_group {
    const char *title;
    const option *options;
    size_t count;
    void *target;
} option_group;

typedef struct command_line {
    const char *name;        /* "run" */
    const char *usage;       /* what follows "flashattn run"; several lines allowed */
    const char *description; /* one or more paragraphs; lines are wrapped, a line that begins with a blank is not */
    const char *examples;    /* printed as they are */
    const option_group *groups;
    size_t group_count;
    size_t max_arguments; /* arguments that are no options */
} command_line;

/*
 * Reads argv[0 .. argc-1] (what follows the command's name). Arguments that are no options go to
 * arguments[max_arguments], in order. Accepted: --name value, --name=value, -o value, -- to end the options;
 * an option may stand once. Returns true if the command shall go on; else *exit_code is set, and --help or an
 * error message was printed.
 */
bool options_parse(const command_line *line, int argc, char **argv, const char **arguments, size_t *argument_count,
                   int *exit_code);

void options_print_help(const command_line *line);

/* For the help texts: wraps text at the terminal's width (at most 100 columns), every line indented. */
void print_wrapped(const char *text, int indent, int first_column);

/* The whole text as a decimal integer: no blanks, nothing behind it. */
bool parse_integer(const char *text, int64_t *value);

#endif
