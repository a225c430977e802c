/* SPDX-License-Identifier: Apache-2.0 */
/* Prints --help from the option tables. */
#include "message.h"
#include "options.h"
#include "terminal.h"

#include <stdio.h>
#include <string.h>

/* Descriptions of options begin here; longer names push theirs to the next line. */
#define HELP_COLUMN 30

static int text_width(void) {
    int width = terminal_width(stdout);
    return width < 100 ? width : 100;
}

/* Words are filled into lines; the cursor is at first_column already. */
static void print_paragraph(const char *text, size_t length, int indent, int first_column) {
    int column = first_column, width = text_width();
    bool line_start = true;
    while (length > 0) {
        size_t word = 0;
        while (word < length && text[word] != ' ') word++;
        if (!line_start && column + 1 + (int)word > width) {
            (void)printf("\n%*s", indent, "");
            column = indent;
            line_start = true;
        }
        if (!line_start) {
            (void)putchar(' ');
            column++;
        }
        (void)printf("%.*s", (int)word, text);
        column += (int)word;
        line_start = false;
        text += word;
        length -= word;
        while (length > 0 && text[0] == ' ') {
            text++;
            length--;
        }
    }
    (void)putchar('\n');
}

void print_wrapped(const char *text, int indent, int first_column) {
    for (;;) {
        size_t length = strcspn(text, "\n");
        if (first_column < indent) (void)printf("%*s", length > 0 ? indent - first_column : 0, "");
        if (text[0] == ' ')
            (void)printf("%.*s\n", (int)length, text);
        else
            print_paragraph(text, length, indent, indent);
        if (text[length] == '\0') return;
        text += length + 1;
        first_column = 0;
    }
}

static void print_option(const option *o) {
    char names[96];
    int length =
        snprintf(names, sizeof names, "  %c%c%s--%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                 o->letter ? ", " : "  ", o->name, o->placeholder ? " " : "", o->placeholder ? o->placeholder : "");
    (void)fputs(names, stdout);
    if (length + 2 > HELP_COLUMN) {
        (void)putchar('\n');
        length = 0;
    }
    print_wrapped(o->help, HELP_COLUMN, length);
}

void options_print_help(const command_line *line) {
    const char *usage = line->usage;
    (void)printf("%sUsage%s\n", style(stdout, STYLE_BOLD), style(stdout, STYLE_NONE));
    for (;;) {
        size_t length = strcspn(usage, "\n");
        (void)printf("  flashattn %s %.*s\n", line->name, (int)length, usage);
        if (usage[length] == '\0') break;
        usage += length + 1;
    }
    (void)putchar('\n');
    print_wrapped(line->description, 0, 0);
    for (size_t g = 0; g < line->group_count; g++) {
        const option_group *group = &line->groups[g];
        (void)printf("\n%s%s%s\n", style(stdout, STYLE_BOLD), group->title, style(stdout, STYLE_NONE));
        for (size_t i = 0; i < group->count; i++) print_option(&group->options[i]);
    }
    (void)printf("\n%sExamples%s\n%s", style(stdout, STYLE_BOLD), style(stdout, STYLE_NONE), line->examples);
}
