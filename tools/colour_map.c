/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A curve through OKLab (Ottosson 2020, "A perceptual color space for image processing"), in which equal
 * distances look equally different. Lightness falls, the hue turns from yellow-green to blue, and the curve is
 * walked at constant speed: equal differences of weight look equally different, also in grey and to the
 * colour-blind, for whom lightness remains.
 */
#define _XOPEN_SOURCE 700 /* M_PI */

#include "colour_map.h"

#include <math.h>

typedef struct lab {
    double l, a, b;
} lab;

/* The curve before its speed is evened out. The largest chroma that sRGB has along it is 0.089, at t = 0.7. */
static lab curve(double t) {
    double chroma = 0.088 * (1 - pow(1 - t, 4)), hue = (108 + 166 * t) * M_PI / 180;
    lab c = {0.985 - 0.715 * t, chroma * cos(hue), chroma * sin(hue)};
    return c;
}

static double srgb(double linear) {
    if (linear <= 0) return 0;
    if (linear >= 1) return 1;
    return linear <= 0.0031308 ? 12.92 * linear : 1.055 * pow(linear, 1 / 2.4) - 0.055;
}

static colour colour_of_lab(lab c) {
    double l = c.l + 0.3963377774 * c.a + 0.2158037573 * c.b;
    double m = c.l - 0.1055613458 * c.a - 0.0638541728 * c.b;
    double s = c.l - 0.0894841775 * c.a - 1.2914855480 * c.b;
    l = l * l * l;
    m = m * m * m;
    s = s * s * s;
    colour rgb = {srgb(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
                  srgb(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
                  srgb(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
    return rgb;
}

void colour_map_init(colour_map *map) {
    enum { STEPS = 2048 };
    double length[STEPS + 1];
    lab previous = curve(0);
    length[0] = 0;
    for (int i = 1; i <= STEPS; i++) {
        lab next = curve((double)i / STEPS);
        double dl = next.l - previous.l, da = next.a - previous.a, db = next.b - previous.b;
        length[i] = length[i - 1] + sqrt(dl * dl + da * da + db * db);
        previous = next;
    }
    for (int i = 0, step = 0; i < COLOUR_MAP_SIZE; i++) {
        double wanted = length[STEPS] * i / (COLOUR_MAP_SIZE - 1);
        while (step < STEPS && length[step] < wanted) step++;
        map->colours[i] = colour_of_lab(curve((double)step / STEPS));
    }
}

colour colour_map_at(const colour_map *map, double x) {
    if (!(x > 0)) x = 0;
    if (x > 1) x = 1;
    return map->colours[(int)(x * (COLOUR_MAP_SIZE - 1) + 0.5)];
}

uint32_t colour_rgb24(colour c) {
    return (uint32_t)(c.red * 255 + 0.5) << 16 | (uint32_t)(c.green * 255 + 0.5) << 8 | (uint32_t)(c.blue * 255 + 0.5);
}
