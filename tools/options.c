/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of command lines: see options.h. The help is printed in help.c. */
#include "options.h"

#include "message.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Values ---- */

bool parse_integer(const char *text, int64_t *value) {
    char *end;
    if (!(text[0] >= '0' && text[0] <= '9') && text[0] != '-' && text[0] != '+') return false;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0') return false;
    *value = number;
    return true;
}

static bool parse_number(const char *text, double *value) {
    char *end;
    if (text[0] == '\0' || strchr("0123456789.+-", text[0]) == NULL) return false;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && fabs(*value) <= (double)FLT_MAX; /* false for NaN */
}

/* One integer, on its own or from a list, with its range. */
static bool read_integer(const option *o, const char *text, int64_t *value, int *exit_code) {
    bool any = o->min == 0 && o->max == 0;
    if (!parse_integer(text, value)) {
        *exit_code = fail_usage("--%s = %s: must be an integer", o->name, text);
    } else if (!any && (*value < o->min || *value > o->max)) {
        if (o->max == INT64_MAX)
            *exit_code = fail_usage("--%s = %s: must be at least %" PRId64, o->name, text, o->min);
        else
            *exit_code = fail_usage("--%s = %s: must be %" PRId64 " .. %" PRId64, o->name, text, o->min, o->max);
    } else {
        return true;
    }
    return false;
}

static bool read_choice(const option *o, const char *text, int *index, int *exit_code) {
    char known[256] = "";
    for (int i = 0; o->choices(i) != NULL; i++) {
        if (strcmp(o->choices(i), text) == 0) {
            *index = i;
            return true;
        }
        if (i > 0) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, o->choices(i), sizeof known - strlen(known) - 1);
    }
    *exit_code = fail_usage("--%s = %s: must be %s %s", o->name, text,
                            o->kind == OPTION_CHOICE_LIST ? "all or some of" : "one of", known);
    return false;
}

/* Cuts the next item of a comma-separated list into item; false if there is none, or it is empty or too long. */
static bool next_item(const char **list, char *item, size_t size) {
    if (*list == NULL) return false;
    size_t length = strcspn(*list, ",");
    if (length == 0 || length >= size) return false;
    memcpy(item, *list, length);
    item[length] = '\0';
    *list = (*list)[length] == ',' ? *list + length + 1 : NULL;
    return true;
}

static bool read_integer_list(const option *o, const char *text, option_integer_list *list, int *exit_code) {
    char item[32];
    const char *rest = text;
    while (rest != NULL) {
        if (!next_item(&rest, item, sizeof item)) {
            *exit_code = fail_usage("--%s = %s: must be integers separated by commas", o->name, text);
            return false;
        }
        if (list->count == OPTION_LIST_MAX) {
            *exit_code = fail_usage("--%s = %s: has more than %d values", o->name, text, OPTION_LIST_MAX);
            return false;
        }
        if (!read_integer(o, item, &list->values[list->count], exit_code)) return false;
        list->count++;
    }
    return true;
}

static bool read_choice_list(const option *o, const char *text, uint32_t *bits, int *exit_code) {
    char item[64];
    const char *rest = text;
    if (strcmp(text, "all") == 0) {
        *bits = OPTION_CHOICES_ALL;
        return true;
    }
    while (rest != NULL) {
        int index = 0;
        if (!next_item(&rest, item, sizeof item)) {
            *exit_code = fail_usage("--%s = %s: must be names separated by commas", o->name, text);
            return false;
        }
        if (!read_choice(o, item, &index, exit_code)) return false;
        *bits |= UINT32_C(1) << index;
    }
    return true;
}

static bool store_value(const option *o, void *target, const char *text, int *exit_code) {
    char *at = (char *)target + o->offset;
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)(void *)at = true; return true;
    case OPTION_TEXT: *(const char **)(void *)at = text; return true;
    case OPTION_CHOICE: return read_choice(o, text, (int *)(void *)at, exit_code);
    case OPTION_INTEGER_LIST: return read_integer_list(o, text, (option_integer_list *)(void *)at, exit_code);
    case OPTION_CHOICE_LIST: return read_choice_list(o, text, (uint32_t *)(void *)at, exit_code);
    case OPTION_INTEGER: {
        option_integer *integer = (option_integer *)(void *)at;
        integer->given = true;
        return read_integer(o, text, &integer->value, exit_code);
    }
    case OPTION_NUMBER: {
        option_number *number = (option_number *)(void *)at;
        number->given = true;
        if (parse_number(text, &number->value)) return true;
        *exit_code = fail_usage("--%s = %s: must be a finite number", o->name, text);
        return false;
    }
    }
    return false;
}

/* ---- Names ---- */

/* The number of letters to insert, delete or replace to turn a into b; names are short. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[64], length = strlen(b);
    if (length >= 64) return SIZE_MAX;
    for (size_t j = 0; j <= length; j++) row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[length];
}

static int fail_unknown(const command_line *line, const char *text, size_t name_length) {
    const char *nearest = NULL;
    size_t distance = 4; /* farther names are no misspellings */
    char name[64];
    if (name_length > 2 && name_length < sizeof name) {
        memcpy(name, text, name_length);
        name[name_length] = '\0';
        for (size_t g = 0; g < line->group_count; g++) {
            for (size_t i = 0; i < line->groups[g].count; i++) {
                size_t d = edit_distance(name + 2, line->groups[g].options[i].name);
                if (d < distance && d * 2 < name_length) {
                    distance = d;
                    nearest = line->groups[g].options[i].name;
                }
            }
        }
    }
    if (nearest != NULL)
        return fail_usage("%.*s is not an option; did you mean --%s?", (int)name_length, text, nearest);
    return fail_usage("%.*s is not an option", (int)name_length, text);
}

/* *number counts options through all groups. */
static const option *find_option(const command_line *line, const char *text, size_t length, void **target,
                                 size_t *number) {
    *number = 0;
    for (size_t g = 0; g < line->group_count; g++) {
        const option_group *group = &line->groups[g];
        for (size_t i = 0; i < group->count; i++, ++*number) {
            const option *o = &group->options[i];
            *target = group->target;
            if (length == 2 && o->letter != '\0' && text[1] == o->letter) return o;
            if (length > 2 && text[1] == '-' && strlen(o->name) == length - 2 &&
                memcmp(o->name, text + 2, length - 2) == 0)
                return o;
        }
    }
    return NULL;
}

/* ---- Command lines ---- */

static bool takes_negative_values(const option *o) {
    return o->kind == OPTION_INTEGER || o->kind == OPTION_NUMBER || o->kind == OPTION_INTEGER_LIST;
}

/* A following argument that looks like an option is one: a forgotten value must not swallow it. */
static bool is_value(const option *o, const char *text) {
    if (text == NULL || strncmp(text, "--", 2) == 0) return false;
    return text[0] != '-' || text[1] == '\0' || takes_negative_values(o);
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/* The option at argv[*i] with its value; *i moves to the last argument that belongs to it. */
static bool read_option(const command_line *line, int argc, char **argv, int *i, bool *seen, size_t seen_size,
                        int *exit_code) {
    const char *text = argv[*i];
    size_t length = strcspn(text, "=");
    const char *value = text[length] == '=' ? text + length + 1 : NULL;
    void *target = NULL;
    size_t number = 0;
    const option *o = find_option(line, text, length, &target, &number);
    if (o == NULL || number >= seen_size) {
        *exit_code = fail_unknown(line, text, length);
        return false;
    }
    if (seen[number]) {
        *exit_code = fail_usage("--%s is given twice", o->name);
        return false;
    }
    seen[number] = true;
    if (o->kind == OPTION_FLAG) {
        if (value != NULL) {
            *exit_code = fail_usage("--%s = %s: takes no value", o->name, value);
            return false;
        }
    } else if (value == NULL) {
        value = *i + 1 < argc ? argv[*i + 1] : NULL;
        if (!is_value(o, value)) {
            *exit_code = fail_usage("--%s needs a value, %s", o->name, o->placeholder);
            return false;
        }
        ++*i;
    }
    if (value != NULL && value[0] == '\0') {
        *exit_code = fail_usage("--%s has an empty value; it must be %s", o->name, o->placeholder);
        return false;
    }
    return store_value(o, target, value, exit_code);
}

bool options_parse(const command_line *line, int argc, char **argv, const char **arguments, size_t *argument_count,
                   int *exit_code) {
    bool seen[96] = {false};
    bool options_end = false;
    *argument_count = 0;
    if (asks_for_help(argc, argv)) {
        options_print_help(line);
        *exit_code = EXIT_CODE_OK;
        return false;
    }
    for (int i = 0; i < argc; i++) {
        if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (!options_end && argv[i][0] == '-' && argv[i][1] != '\0') {
            if (!read_option(line, argc, argv, &i, seen, sizeof seen / sizeof seen[0], exit_code)) return false;
        } else if (*argument_count == line->max_arguments) {
            *exit_code =
                fail_usage("%s: is one argument too many; at most %zu can be given", argv[i], line->max_arguments);
            return false;
        } else {
            arguments[(*argument_count)++] = argv[i];
        }
    }
    return true;
}
