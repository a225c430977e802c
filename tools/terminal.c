/* SPDX-License-Identifier: Apache-2.0 */
/* Terminal output: see terminal.h. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE /* winsize */

#include "terminal.h"

#include "clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool is_terminal(FILE *stream) {
    const char *term = getenv("TERM");
    return isatty(fileno(stream)) && !(term != NULL && strcmp(term, "dumb") == 0);
}

const char *style(FILE *stream, text_style which) {
    static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[1;31m"};
    const char *no_color = getenv("NO_COLOR");
    if (!is_terminal(stream) || (no_color != NULL && no_color[0] != '\0')) return "";
    return sequences[which];
}

int terminal_width(FILE *stream) {
    struct winsize size;
    if (!isatty(fileno(stream)) || ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
    return size.ws_col;
}

/* Asked of the environment as setlocale(LC_CTYPE, "") would, without changing the locale of the process. */
static bool locale_is_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') return strstr(value, "UTF-8") != NULL || strstr(value, "utf8") != NULL;
    }
    return false;
}

void progress_begin(progress *p, double total) {
    p->shown = is_terminal(stderr);
    p->utf8 = locale_is_utf8();
    p->total = total > 0 ? total : 1;
    p->start = now_seconds();
    p->drawn = -1;
}

void progress_update(progress *p, double done, const char *label) {
    double now = now_seconds();
    if (!p->shown || (p->drawn >= 0 && now - p->drawn < 0.05)) return;
    p->drawn = now;
    double fraction = done / p->total;
    if (!(fraction >= 0)) fraction = 0;
    if (fraction > 1) fraction = 1;
    char line[512];
    int columns = terminal_width(stderr), bar = columns >= 100 ? 40 : 24;
    int filled = (int)(fraction * bar + 0.5), used = snprintf(line, sizeof line, "\r ");
    for (int i = 0; i < bar; i++)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s",
                         p->utf8 ? (i < filled ? "━" : "─") : (i < filled ? "#" : "."));
    int room = columns - bar - 16;
    (void)snprintf(line + used, sizeof line - (size_t)used, " %3.0f %%  %5.1f s", 100 * fraction, now - p->start);
    (void)fprintf(stderr, "%s  %.*s\033[K", line, room > 0 ? room - 4 : 0, label);
    (void)fflush(stderr);
}

void progress_end(progress *p) {
    if (!p->shown || p->drawn < 0) return;
    (void)fputs("\r\033[K", stderr);
    (void)fflush(stderr);
    p->shown = false;
}
