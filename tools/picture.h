/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of `flashattn run`: the attention weights of one head. */
#ifndef FLASHATTN_TOOLS_PICTURE_H
#define FLASHATTN_TOOLS_PICTURE_H

#include "attention.h"
#include "options.h"

typedef struct picture_settings {
    const char *picture;
    option_integer head;
    option_integer batch;
    const char *labels;
    const char *title;
} picture_settings;

extern const option picture_options[];
extern const size_t picture_option_count;

/* Checks what can be checked before anything is computed. Returns an exit code. */
int picture_check(const picture_settings *settings);

/* Draws the picture for a call that fa_plan accepted; source names the input in the subtitle. Prints one line
 * about it unless quiet. Returns an exit code. */
int picture_draw(const picture_settings *settings, const attention *a, const char *source, bool quiet);

#endif
