/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one block: see block.h. */
#include "cpu/block.h"

#include "cpu/arrays.h"
#include "cpu/score_row.h"

int64_t fa_cpu_workspace_init(fa_cpu_workspace *w, const fa_problem *p, const fa_cpu_kernels *kernels,
                              int64_t tile_rows, char *base) {
    const int64_t f = (int64_t)sizeof(float);
    int64_t used = 0;
    w->o_stride = fa_round_up(p->head_dim_v, FA_PANEL_MAX);
    int64_t depth = fa_round_up(p->head_dim, FA_DEPTH_MAX);
    w->q = fa_carve(base, &used, tile_rows * depth * f);
    w->o = fa_carve(base, &used, tile_rows * w->o_stride * f);
    w->s = fa_carve(base, &used, tile_rows * FA_SCORE_STRIDE * f);
    w->kv = fa_carve(base, &used, fa_cpu_tile_bytes(p, kernels));
    w->m = fa_carve(base, &used, tile_rows * f);
    w->l = fa_carve(base, &used, tile_rows * f);
    w->rescale = fa_carve(base, &used, tile_rows * f);
    w->row = fa_carve(base, &used, fa_max(w->o_stride, FA_TILE_KEYS) * f);
    w->keys = fa_carve(base, &used, tile_rows * (int64_t)sizeof(fa_key_range));
    w->rows = fa_carve(base, &used, fa_max(tile_rows, FA_TILE_KEYS) * (int64_t)sizeof(void *));
    w->values = fa_carve(base, &used, FA_TILE_KEYS * (int64_t)sizeof(void *));
    w->next = fa_carve(base, &used, FA_TILE_KEYS * (int64_t)sizeof(void *));
    w->seen = fa_carve(base, &used, tile_rows * FA_TILE_KEYS);
    w->again = fa_carve(base, &used, tile_rows * (int64_t)sizeof(bool));
    return used;
}

/* ---- K/V tiles ---- */

/* Keys of a tile: those from `key` on. */
typedef struct key_tile {
    int64_t key;     /* a multiple of FA_TILE_KEYS */
    int64_t skipped; /* the first few, which nobody sees; they are not read */
    int64_t count;   /* with the skipped ones */
} key_tile;

/* Tile n, cut to the keys [begin, end). That it begins with a multiple of FA_TILE_KEYS whatever `begin` is makes the order
 * of sums independent of who else is in the block. */
static key_tile cut_tile(int64_t n, int64_t begin, int64_t end) {
    int64_t key = n * FA_TILE_KEYS;
    return (key_tile){key, fa_max(begin - key, 0), fa_min(end - key, FA_TILE_KEYS)};
}

/* Addresses of the tile's keys, in k or v; zeros stand in for skipped ones. */
static void key_rows(const fa_problem *p, const fa_rows *tensor, const fa_sequence *s, int64_t head_kv,
                     const key_tile *tile, const void **rows) {
    static const float zeros[FA_HEAD_DIM_MAX];
    for (int64_t j = 0; j < tile->skipped; j++) rows[j] = zeros;
    for (int64_t j = tile->skipped; j < tile->count; j++)
        rows[j] = fa_key_address(p, tensor, s, tile->key + j, head_kv);
}

static int64_t k_bytes(const fa_problem *p, const fa_cpu_kernels *kernels) {
    return FA_TILE_KEYS * fa_round_up(p->head_dim, kernels->depth) * kernels->b_bytes;
}

static int64_t kv_bytes(const fa_problem *p, const fa_cpu_kernels *kernels) {
    return k_bytes(p, kernels) + FA_TILE_KEYS * fa_round_up(p->head_dim_v, kernels->panel) * kernels->b_bytes;
}

int64_t fa_cpu_tile_bytes(const fa_problem *p, const fa_cpu_kernels *kernels) { return kv_bytes(p, kernels) + 64; }

int64_t fa_cpu_sequence_tiles(const fa_sequence *s) { return fa_divide_up(s->visibility.key_end, FA_TILE_KEYS); }

/* Rows lie far apart where there are many heads, so that the processor does not foresee them. */
static void prefetch_rows(const void *const *rows, int64_t count, int64_t bytes) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)rows[j] + i);
}

static void pack_tile(const fa_problem *p, const fa_cpu_kernels *kernels, const fa_sequence *s, int64_t head_kv,
                      const key_tile *tile, char *to, const void **rows) {
    key_rows(p, &p->k, s, head_kv, tile, rows);
    prefetch_rows(rows, tile->count, p->head_dim * fa_element_size(p->k.type));
    kernels->pack_keys(to, rows, tile->count, p->head_dim, p->k.type);
    key_rows(p, &p->v, s, head_kv, tile, rows);
    prefetch_rows(rows, tile->count, p->head_dim_v * fa_element_size(p->v.type));
    to[kv_bytes(p, kernels)] =
        kernels->pack_values(to + k_bytes(p, kernels), rows, tile->count, p->head_dim_v, p->v.type);
}

void fa_cpu_pack_tile(const fa_problem *p, const fa_cpu_kernels *kernels, const fa_sequence *s, int64_t head_kv,
                      int64_t tile, char *to, const void **rows) {
    key_tile keys = cut_tile(tile, s->visibility.key_begin, s->visibility.key_end);
    pack_tile(p, kernels, s, head_kv, &keys, to, rows);
}

/* ---- One block ---- */

/* One computation of a block. */
typedef struct pass {
    const fa_cpu_block *block;
    const fa_cpu_kernels *kernels;
    int64_t depth;                      /* head_dim, padded */
    float factor;                       /* of Q as it is loaded */
    bool multiply;                      /* scores, by score_scale, before anything else happens to them */
    float score_scale;                  /* what is then left of softmax_scale */
    float softmax_scale;                /* of scores as softmax_step sees them */
    int shift;                          /* weights carry a factor of 2^-shift */
    bool plain;                         /* scores change by nothing but what a row does not see */
    int64_t k_bytes, kv_bytes, width_v; /* of packed tiles */
} pass;

/* Where softmax_scale goes. Into Q, if Q is float32. A bfloat16 Q would have to be rounded after it, so the scores are
 * scaled: by softmax_step in passing, or first of all where something else happens to scores in natural units, or where
 * the scale is so small or large that float32 would not hold it times log2 e, or 0. */
static pass make_pass(const fa_problem *p, const fa_cpu_block *b) {
    float magnitude = fabsf(p->softmax_scale);
    bool operand = b->kernels->operand == FA_ELEMENT_BFLOAT16;
    bool changed = p->softcap > 0 || p->bias.data != NULL || p->alibi_slopes.data != NULL;
    bool natural = changed || !(magnitude > 0x1p-60f && magnitude < 0x1p60f);
    pass t = {.block = b, .kernels = b->kernels};
    t.depth = fa_round_up(p->head_dim, b->kernels->depth);
    t.factor = operand ? copysignf(1.0f, p->softmax_scale) : p->softmax_scale;
    t.multiply = operand && natural;
    t.score_scale = operand ? magnitude : 1.0f;
    t.softmax_scale = t.multiply ? 1.0f : t.score_scale;
    t.plain = !t.multiply && !changed && p->mask.data == NULL;
    if (b->in_place) return t;
    t.k_bytes = k_bytes(p, b->kernels);
    t.kv_bytes = kv_bytes(p, b->kernels);
    t.width_v = fa_round_up(p->head_dim_v, b->kernels->panel);
    return t;
}

static void load_queries(const fa_problem *p, const pass *t, fa_cpu_workspace *w) {
    for (int64_t r = 0; r < t->block->count; r++) {
        w->rows[r] =
            fa_query_address(&p->q, &t->block->sequence, fa_block_query(p, t->block, r), fa_block_head(p, t->block, r));
        w->keys[r] = fa_visible_keys(&t->block->sequence.visibility, fa_block_query(p, t->block, r));
        w->m[r] = -INFINITY;
        w->l[r] = 0.0f;
    }
    t->kernels->load_queries(w->q, t->depth, w->rows, t->block->count, p->head_dim, p->q.type, t->factor);
    memset(w->o, 0, (size_t)(t->block->count * w->o_stride) * sizeof(float));
}

/* O = rescale * O + P V for a V tile that holds NaN or infinity: only visible keys are added, since 0 * NaN
 * is NaN. */
static void accumulate_visible(const fa_problem *p, const pass *t, const fa_cpu_workspace *w, const void *const *values,
                               const float *s, int64_t first, int64_t end, int64_t count) {
    for (int64_t r = first; r < end; r++) {
        float *o = w->o + r * w->o_stride;
        const char *weights = (const char *)(s + (r - first) * FA_SCORE_STRIDE);
        fa_element type = t->kernels->operand;
        for (int64_t i = 0; i < p->head_dim_v; i++) o[i] *= w->rescale[r];
        for (int64_t j = 0; j < count; j++) {
            if (!w->seen[r * FA_TILE_KEYS + j]) continue;
            float weight = (float)fa_element_load(weights + j * fa_element_size(type), type);
            t->kernels->load_rows(w->row, w->o_stride, &values[j], 1, p->head_dim_v, p->v.type, 1.0f);
            for (int64_t i = 0; i < p->head_dim_v; i++) o[i] += weight * w->row[i];
        }
    }
}

/* Score changes and masks, for the rows [first, end), whose scores begin at s, and the first `columns` of the tile. Returns
 * whether any of its keys is hidden, or may be. */
static bool finish_scores(const fa_problem *p, const pass *t, fa_cpu_workspace *w, const key_tile *tile, float *s,
                          int64_t first, int64_t end, int64_t columns) {
    bool offsets = p->bias.data != NULL || p->alibi_slopes.data != NULL;
    bool hidden = p->bias.data != NULL;
    int64_t count = fa_min(tile->count, columns);
    for (int64_t r = first; r < end; r++) {
        float *row = s + (r - first) * FA_SCORE_STRIDE;
        bool hide = w->keys[r].begin > tile->key || w->keys[r].end < tile->key + count || p->mask.data != NULL;
        for (int64_t j = 0; t->multiply && j < columns; j++) row[j] *= t->score_scale;
        if (p->softcap > 0) t->kernels->softcap(row, columns, p->softcap);
        if (offsets || hide) {
            fa_score_row at = {&t->block->sequence, fa_block_query(p, t->block, r), fa_block_head(p, t->block, r),
                               tile->key, count};
            if (offsets) fa_score_row_offset(p, t->kernels->load_rows, &at, row, w->row);
            if (hide) fa_score_row_hide(p, &at, w->keys[r], count, row);
            hidden |= hide;
        }
        for (int64_t j = count; j < columns; j++) row[j] = -INFINITY;
    }
    return hidden;
}

/* Notes which keys a row sees, before scores turn into weights. */
static void note_seen(fa_cpu_workspace *w, const float *s, int64_t first, int64_t end, int64_t count) {
    for (int64_t r = first; r < end; r++)
        for (int64_t j = 0; j < count; j++)
            w->seen[r * FA_TILE_KEYS + j] = s[(r - first) * FA_SCORE_STRIDE + j] != -INFINITY ? 1u : 0u;
}

/* Whether row r of any head sees one of the keys [begin, end). */
static bool row_sees(const fa_cpu_block *b, const fa_cpu_workspace *w, int64_t r, int64_t begin, int64_t end) {
    for (; r < b->count; r += b->per_head)
        if (w->keys[r].begin < w->keys[r].end && w->keys[r].begin < end && w->keys[r].end > begin) return true;
    return false;
}

/* ---- Packed ---- */

/* A strip of rows and a tile of which it sees something. */
typedef struct cell {
    key_tile tile;
    int64_t first, rows;
    int64_t columns; /* of the tile, in whole panels, beyond which the strip sees nothing */
    const char *k;   /* the tile, packed */
    float *s;        /* [rows][FA_SCORE_STRIDE], scores, then weights */
    bool whole;      /* every row sees all keys of the columns, by position */
    bool not_finite; /* V holds NaN or infinity */
} cell;

static cell make_cell(const pass *t, const fa_cpu_workspace *w, const key_tile *tile, const char *k, int64_t first,
                      int64_t end, float *s) {
    cell c = {.tile = *tile, .first = first, .rows = end - first, .k = k, .s = s, .not_finite = k[t->kv_bytes] != 0};
    int64_t latest_begin = 0, first_end = INT64_MAX, last_end = 0;
    for (int64_t i = first; i < end; i++) {
        latest_begin = fa_max(latest_begin, w->keys[i].begin);
        first_end = fa_min(first_end, w->keys[i].end);
        last_end = fa_max(last_end, w->keys[i].end);
    }
    int64_t panel = t->kernels->panel, seen = fa_min(tile->count, fa_max(last_end - tile->key, 1));
    c.columns = (seen + panel - 1) / panel * panel;
    c.whole = latest_begin <= tile->key && first_end >= tile->key + c.columns && tile->count >= c.columns;
    return c;
}

static fa_cpu_product score_product(const pass *t, const fa_cpu_workspace *w, const cell *c) {
    const char *q = (const char *)w->q + c->first * t->depth * fa_element_size(t->kernels->operand);
    return (fa_cpu_product){c->s, FA_SCORE_STRIDE, q, t->depth, c->k, t->depth, c->rows, c->columns, t->depth, NULL};
}

static fa_cpu_product output_product(const pass *t, const fa_cpu_workspace *w, const cell *c) {
    int64_t depth_v = fa_round_up(c->tile.count, t->kernels->depth);
    return (fa_cpu_product){.c = w->o + c->first * w->o_stride,
                            .c_stride = w->o_stride,
                            .a = c->s,
                            .a_stride = FA_SCORE_STRIDE * (4 / fa_element_size(t->kernels->operand)),
                            .b = c->k + t->k_bytes,
                            .b_depth = depth_v,
                            .rows = c->rows,
                            .columns = t->width_v,
                            .depth = fa_min(c->columns, depth_v),
                            .row_scale = w->rescale + c->first};
}

static void multiply(const pass *t, fa_cpu_product x) {
    t->kernels->multiply(x.c, x.c_stride, x.a, x.a_stride, x.b, x.b_depth, x.rows, x.columns, x.depth, x.row_scale);
}

static void finish_cell_scores(const fa_problem *p, const pass *t, fa_cpu_workspace *w, const cell *c) {
    int64_t end = c->first + c->rows;
    if (!t->plain || !c->whole) (void)finish_scores(p, t, w, &c->tile, c->s, c->first, end, c->columns);
    if (c->not_finite) note_seen(w, c->s, c->first, end, fa_min(c->tile.count, c->columns));
}

static void accumulate_visible_of_cell(const fa_problem *p, const pass *t, fa_cpu_workspace *w, const cell *c) {
    key_rows(p, &p->v, &t->block->sequence, t->block->head_kv, &c->tile, w->values);
    accumulate_visible(p, t, w, w->values, c->s, c->first, c->first + c->rows, fa_min(c->tile.count, c->columns));
}

/* Tile n as it is packed ahead, with the keys that any query of the sequence sees. */
static key_tile packed_tile(const pass *t, int64_t n) {
    const fa_visibility *whole = &t->block->sequence.visibility;
    return cut_tile(n, whole->key_begin, whole->key_end);
}

/* The rows [first, end) and a tile of which they see something, strip by strip. */
static void attend_packed(const fa_problem *p, const pass *t, fa_cpu_workspace *w, const key_tile *tile, int64_t first,
                          int64_t end) {
    const fa_cpu_block *b = t->block;
    const char *k = b->packed;
    if (k == NULL) {
        pack_tile(p, t->kernels, &b->sequence, b->head_kv, tile, w->kv, w->rows);
        k = w->kv;
    } else {
        k += tile->key / FA_TILE_KEYS * b->tile_bytes;
    }
    for (int64_t r = first, next; r < end; r = next) {
        next = fa_min(r + t->kernels->strip, end);
        cell c = make_cell(t, w, tile, k, r, next, w->s + r * FA_SCORE_STRIDE);
        multiply(t, score_product(t, w, &c));
        finish_cell_scores(p, t, w, &c);
        t->kernels->softmax_step(c.s, FA_SCORE_STRIDE, c.rows, c.columns, t->softmax_scale, t->shift, w->m + r,
                                 w->l + r, w->rescale + r);
        if (c.not_finite)
            accumulate_visible_of_cell(p, t, w, &c);
        else
            multiply(t, output_product(t, w, &c));
    }
}

/* ---- Packed, with a softmax beside the products ---- */

/* All strips go through so many tiles before the next ones, so that the tiles stay in L2, and for most of the time the
 * strip's Q and O in L1. */
#define CHUNK_TILES 4
/* Strips of scores in use: those being computed, those becoming weights, and weights that are multiplied by V. */
#define STRIPS_IN_USE 3

/* The cells of a block, from the first on. */
typedef struct cell_place {
    int64_t tile_end;
    int64_t chunk, first, tile; /* the next one, if its strip sees it */
    int64_t passed;
} cell_place;

static bool next_cell(const pass *t, const fa_cpu_workspace *w, cell_place *at, cell *c) {
    const fa_cpu_block *b = t->block;
    int64_t strip = t->kernels->strip;
    for (; at->chunk < at->tile_end; at->chunk += CHUNK_TILES, at->first = 0, at->tile = at->chunk)
        for (; at->first < b->count; at->first += strip, at->tile = at->chunk)
            while (at->tile < fa_min(at->chunk + CHUNK_TILES, at->tile_end)) {
                int64_t n = at->tile++, end = fa_min(at->first + strip, b->count), r = at->first;
                key_tile tile = packed_tile(t, n);
                while (r < end && !row_sees(b, w, r, tile.key + tile.skipped, tile.key + tile.count)) r++;
                if (r == end) continue;
                *c = make_cell(t, w, &tile, b->packed + n * b->tile_bytes, at->first, end,
                               w->s + at->passed++ % STRIPS_IN_USE * strip * FA_SCORE_STRIDE);
                return true;
            }
    return false;
}

/* The tiles [tile_begin, tile_end): while the scores of one cell become weights, the last cell's weights are multiplied by V
 * and the next cell's scores are computed. */
static void attend_beside(const fa_problem *p, const pass *t, fa_cpu_workspace *w, int64_t tile_begin,
                          int64_t tile_end) {
    cell_place at = {.tile_end = tile_end, .chunk = tile_begin, .tile = tile_begin};
    cell last, c, next;
    bool any_last = false;
    if (!next_cell(t, w, &at, &c)) return;
    multiply(t, score_product(t, w, &c));
    for (bool more = true; more; last = c, c = next) {
        fa_cpu_product beside[2];
        int count = 0;
        if (any_last) beside[count++] = output_product(t, w, &last);
        more = next_cell(t, w, &at, &next);
        if (more) beside[count++] = score_product(t, w, &next);
        finish_cell_scores(p, t, w, &c);
        t->kernels->softmax_beside(c.s, FA_SCORE_STRIDE, c.rows, c.columns, t->softmax_scale, t->shift, w->m + c.first,
                                   w->l + c.first, w->rescale + c.first, beside, count);
        any_last = !c.not_finite;
        if (c.not_finite) accumulate_visible_of_cell(p, t, w, &c);
    }
    if (any_last) multiply(t, output_product(t, w, &last));
}

/* ---- In place ---- */

/* Keys that all heads of a block go through before the next ones: their K, or V, of all heads fits L1, and with several
 * heads lies together in memory. */
#define CHUNK_KEYS 16

/* K or V of a tile, for all heads of a block: those of the first head, and the way from one head to the next. */
typedef struct head_rows {
    const void *const *rows; /* NULL: none */
    int64_t head_stride;
    int64_t skipped, count;
} head_rows;

/* Addresses of keys [begin, begin + count) of head number `head` of the block; `to` has room for them. */
static const void *const *rows_of_head(const head_rows *h, int64_t head, int64_t begin, int64_t count,
                                       const void **to) {
    if (head == 0) return h->rows + begin;
    for (int64_t j = 0; j < count; j++) {
        const char *first = h->rows[begin + j];
        to[j] = begin + j < h->skipped ? first : first + head * h->head_stride;
    }
    return to;
}

/* Part `part` of `heads` of what lies in a chunk, in the order of memory: an equal number of rows for each part, which are
 * prefetched while head number `part` is computed. NULL where the chunk is not whole. */
static const void *const *rows_ahead(const head_rows *h, int64_t heads, int64_t part, int64_t begin, const void **to) {
    if (h->rows == NULL || begin < h->skipped || begin + CHUNK_KEYS > h->count) return NULL;
    if (heads == 1) return h->rows + begin;
    int64_t key = begin + part * CHUNK_KEYS / heads, head = part * CHUNK_KEYS % heads;
    for (int64_t i = 0; i < CHUNK_KEYS; i++) {
        to[i] = (const char *)h->rows[key] + head * h->head_stride;
        if (++head < heads) continue;
        head = 0;
        key++;
    }
    return to;
}

/* A tile with K and V where they lie, for the rows [first, end) of each head. Values are searched for NaN and infinity only
 * if a row does not see them all. `next`: the tile to prefetch from, or NULL. */
static void attend_in_place(const fa_problem *p, const pass *t, fa_cpu_workspace *w, const key_tile *tile,
                            const key_tile *next, int64_t first, int64_t end) {
    const fa_cpu_kernels *kernels = t->kernels;
    const fa_cpu_block *b = t->block;
    int64_t heads = b->count / b->per_head, rows = end - first;
    int64_t columns = fa_round_up(tile->count, kernels->panel / 2); /* as softmax_step wants them */
    int64_t element = fa_element_size(kernels->operand);
    head_rows k = {w->rows, p->k.head_stride, tile->skipped, tile->count};
    head_rows v = {w->values, p->v.head_stride, tile->skipped, tile->count};
    head_rows after = {NULL, p->k.head_stride, 0, 0};
    key_rows(p, &p->k, &b->sequence, b->head_kv, tile, w->rows);
    key_rows(p, &p->v, &b->sequence, b->head_kv, tile, w->values);
    if (next != NULL) {
        key_rows(p, &p->k, &b->sequence, b->head_kv, next, w->next);
        after = (head_rows){w->next, p->k.head_stride, next->skipped, next->count};
    }
    const void *room[CHUNK_KEYS], *ahead[CHUNK_KEYS], *const *now;
    for (int64_t j = 0; j < tile->count; j += CHUNK_KEYS)
        for (int64_t head = 0; head < heads; head++) {
            int64_t row = head * b->per_head + first, count = fa_min(CHUNK_KEYS, tile->count - j);
            bool last = j + CHUNK_KEYS >= tile->count;
            now = rows_of_head(&k, head, j, count, room);
            kernels->dot_rows(w->s + row * FA_SCORE_STRIDE + j, FA_SCORE_STRIDE,
                              (char *)w->q + row * t->depth * element, t->depth, rows, now, count, p->head_dim,
                              p->k.type, rows_ahead(last ? &v : &k, heads, head, last ? 0 : j + CHUNK_KEYS, ahead));
        }
    bool not_finite = false;
    for (int64_t head = 0; head < heads; head++) {
        int64_t row = head * b->per_head + first;
        bool hidden = finish_scores(p, t, w, tile, w->s + row * FA_SCORE_STRIDE, row, row + rows, columns);
        for (int64_t j = 0; j < tile->count && hidden && !not_finite; j += CHUNK_KEYS) {
            int64_t count = fa_min(CHUNK_KEYS, tile->count - j);
            now = rows_of_head(&v, head, j, count, room);
            not_finite = b->float32->any_nonfinite(now, count, p->head_dim_v, p->v.type);
        }
    }
    for (int64_t head = 0; head < heads; head++) {
        int64_t row = head * b->per_head + first;
        if (not_finite) note_seen(w, w->s + row * FA_SCORE_STRIDE, row, row + rows, tile->count);
        kernels->softmax_step(w->s + row * FA_SCORE_STRIDE, FA_SCORE_STRIDE, rows, columns, t->softmax_scale, t->shift,
                              w->m + row, w->l + row, w->rescale + row);
        if (not_finite)
            accumulate_visible(p, t, w, rows_of_head(&v, head, 0, tile->count, w->next), w->s + row * FA_SCORE_STRIDE,
                               row, row + rows, tile->count);
    }
    for (int64_t j = 0; j < tile->count && !not_finite; j += CHUNK_KEYS) {
        for (int64_t head = 0; head < heads; head++) {
            int64_t row = head * b->per_head + first, count = fa_min(CHUNK_KEYS, tile->count - j);
            bool last = j + CHUNK_KEYS >= tile->count;
            now = rows_of_head(&v, head, j, count, room);
            const char *weights = (char *)(w->s + row * FA_SCORE_STRIDE) + j * element;
            kernels->add_rows(w->o + row * w->o_stride, w->o_stride, weights, FA_SCORE_STRIDE * (4 / element), rows,
                              now, count, p->head_dim_v, p->v.type, w->rescale + row,
                              rows_ahead(last ? &after : &v, heads, head, last ? 0 : j + CHUNK_KEYS, ahead),
                              last ? p->head_dim : p->head_dim_v);
        }
        for (int64_t r = 0; r < b->count && j == 0; r++) w->rescale[r] = 1.0f; /* done */
    }
}

/* Part `split` of `splits` of what the rows see (w->keys) is added to o, m and l. */
static void attend_keys(const fa_problem *p, const pass *t, fa_cpu_workspace *w, int64_t split, int64_t splits) {
    /* Both ends rise with the query (mask.h), unused queries at the end apart, which see nothing. */
    int64_t key_begin = INT64_MAX, key_end = 0;
    for (int64_t r = 0; r < t->block->count; r++) {
        if (w->keys[r].begin >= w->keys[r].end) continue;
        key_begin = fa_min(key_begin, w->keys[r].begin);
        key_end = fa_max(key_end, w->keys[r].end);
    }
    if (key_begin >= key_end) return;
    int64_t tile_begin = key_begin / FA_TILE_KEYS, tiles = fa_divide_up(key_end, FA_TILE_KEYS) - tile_begin;
    int64_t tile_end = tile_begin + tiles * (split + 1) / splits;
    tile_begin += tiles * split / splits;
    if (t->block->packed != NULL && t->kernels->softmax_beside != NULL) {
        attend_beside(p, t, w, tile_begin, tile_end);
        return;
    }
    for (int64_t n = tile_begin; n < tile_end; n++) {
        key_tile tile = cut_tile(n, key_begin, key_end);
        int64_t begin = tile.key + tile.skipped, end = tile.key + tile.count;
        int64_t first = 0, last = t->block->per_head;
        while (first < last && !row_sees(t->block, w, first, begin, end)) first++;
        while (last > first && !row_sees(t->block, w, last - 1, begin, end)) last--;
        if (first == last) continue;
        if (t->block->in_place) {
            key_tile next = cut_tile(n + 1, key_begin, key_end);
            attend_in_place(p, t, w, &tile, n + 1 < tile_end ? &next : NULL, first, last);
        } else {
            if (t->block->packed != NULL) tile = packed_tile(t, n);
            attend_packed(p, t, w, &tile, first, last);
        }
    }
}

/* Whether row r of the output is infinite or NaN somewhere. */
static bool output_nonfinite(const fa_problem *p, const fa_cpu_block *b, const fa_cpu_workspace *w, int64_t r) {
    const void *row = w->o + r * w->o_stride;
    return b->float32->any_nonfinite(&row, 1, p->head_dim_v, FA_ELEMENT_FLOAT32);
}

/*
 * O is a sum that is divided at the end, so it may overflow where the average does not: with values above the largest
 * number divided by the number of keys. Rows with an infinite or NaN result (those that are meant to be NaN among them)
 * are computed again with weights times 2^-24, enough for 2^24 keys, and divided at once. The others keep their bits.
 */
static void attend_again(const fa_problem *p, pass *t, fa_cpu_workspace *w, int64_t split, int64_t splits) {
    enum { SHIFT = 24 };
    const fa_cpu_block *b = t->block;
    for (int64_t r = 0; r < b->count; r++) {
        w->again[r] = output_nonfinite(p, b, w, r);
        if (!w->again[r]) {
            w->keys[r].end = w->keys[r].begin;
            continue;
        }
        memset(w->o + r * w->o_stride, 0, (size_t)w->o_stride * sizeof(float));
        w->m[r] = -INFINITY;
        w->l[r] = 0.0f;
    }
    t->shift = SHIFT;
    attend_keys(p, t, w, split, splits);
    for (int64_t r = 0; r < b->count; r++) {
        if (!w->again[r]) continue;
        for (int64_t i = 0; i < p->head_dim_v; i++) w->o[r * w->o_stride + i] /= w->l[r];
        w->m[r] += (logf(w->l[r]) + SHIFT * 0x1.62e430p-1f) / t->softmax_scale; /* ln 2 */
        w->l[r] = 1.0f;
    }
}

void fa_cpu_attend_block(const fa_problem *p, const fa_cpu_block *b, fa_cpu_workspace *w, int64_t split,
                         int64_t splits) {
    pass t = make_pass(p, b);
    load_queries(p, &t, w);
    attend_keys(p, &t, w, split, splits);
    for (int64_t r = 0; r < b->count; r++) w->rows[r] = w->o + r * w->o_stride;
    if (b->float32->any_nonfinite(w->rows, b->count, p->head_dim_v, FA_ELEMENT_FLOAT32))
        attend_again(p, &t, w, split, splits);
    if (t.softmax_scale != 1.0f)
        for (int64_t r = 0; r < b->count; r++) w->m[r] *= t.softmax_scale;
}
