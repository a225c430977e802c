/* SPDX-License-Identifier: Apache-2.0 */
/* A perceptually uniform colour map, from nearly white (0) over green and teal to dark blue (1). */
#ifndef FLASHATTN_TOOLS_COLOUR_MAP_H
#define FLASHATTN_TOOLS_COLOUR_MAP_H

#include <stdint.h>

#define COLOUR_MAP_SIZE 256

typedef struct colour {
    double red, green, blue; /* sRGB, 0 .. 1 */
} colour;

typedef struct colour_map {
    colour colours[COLOUR_MAP_SIZE];
} colour_map;

void colour_map_init(colour_map *map);
/* x is clamped to 0 .. 1. */
colour colour_map_at(const colour_map *map, double x);
uint32_t colour_rgb24(colour c);

#endif
