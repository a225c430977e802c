/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which keys a query may see by its position: the one definition for the reference, the CPU kernel and the
 * device kernels.
 *
 * Causal masks, windows and lengths all come down to the same thing: the keys of query i are one interval
 * that moves right with i. A boolean mask and a bias of -inf then take single keys out of it; they are looked
 * up where scores are computed.
 *
 * Positions count within a sequence: query 0 is its first, key 0 its first, left padding included. The types
 * are 64-bit; a device kernel, whose sequences are shorter than 2^31, may set FA_POSITION to int.
 */
#ifndef FA_MASK_H
#define FA_MASK_H

#ifndef FA_POSITION
#    include <stdint.h>
#    define FA_POSITION int64_t
#endif
#ifndef FA_MASK_FUNCTION
#    define FA_MASK_FUNCTION static inline
#endif

typedef struct fa_visibility {
    FA_POSITION seqlen_q;  /* used queries; rows from here on see nothing */
    FA_POSITION key_begin; /* left padding */
    FA_POSITION key_end;   /* used keys */
    FA_POSITION diagonal;  /* query i is aligned with key i + diagonal */
    FA_POSITION left;      /* keys before the aligned one that are visible */
    FA_POSITION right;     /* keys after it */
} fa_visibility;

/* key_begin <= j < key_end */
typedef struct fa_key_range {
    FA_POSITION begin;
    FA_POSITION end;
} fa_key_range;

/*
 * left and right are bounds as in fa_options: -1 is open. An open side is replaced by a bound that no pair of
 * positions exceeds, so that the rules below need no case for it. Causal narrows the right side to 0.
 */
FA_MASK_FUNCTION fa_visibility fa_visibility_make(FA_POSITION seqlen_q, FA_POSITION key_begin, FA_POSITION key_end,
                                                  int causal, int top_left, FA_POSITION left, FA_POSITION right) {
    FA_POSITION open = seqlen_q + key_end;
    fa_visibility v;
    v.seqlen_q = seqlen_q;
    v.key_begin = key_begin;
    v.key_end = key_end;
    v.diagonal = top_left ? key_begin : key_end - seqlen_q;
    v.left = left < 0 || left > open ? open : left;
    v.right = causal ? 0 : right < 0 || right > open ? open : right;
    return v;
}

/* The keys that query `row` may see; begin == end if none. Both ends never fall as row grows, up to seqlen_q.
 */
FA_MASK_FUNCTION fa_key_range fa_visible_keys(const fa_visibility *v, FA_POSITION row) {
    FA_POSITION aligned = row + v->diagonal;
    fa_key_range keys;
    keys.begin = aligned - v->left > v->key_begin ? aligned - v->left : v->key_begin;
    keys.end = aligned + v->right + 1 < v->key_end ? aligned + v->right + 1 : v->key_end;
    if (row >= v->seqlen_q || keys.end < keys.begin) keys.end = keys.begin;
    return keys;
}

#endif
