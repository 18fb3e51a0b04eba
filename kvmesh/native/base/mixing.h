/* How tables place numbers that others choose: block hashes of engines, clients and other replicas.
 *
 * Two multiplications by 192 random bits of the process, the two halves of the first product folded
 * into one. For whoever does not know them, no two numbers meet more often than by chance, whatever
 * they have in common: equal bits at either end, a fixed distance, one differing bit. A single
 * multiplication is not enough, even by a secret: the distance of two numbers stays that of their
 * products, so that evenly spaced numbers stay evenly spaced. The last multiplier is odd and secret:
 * of any two numbers that the fold keeps apart, the n uppermost bits are equal for at most 2 keys in
 * 2^n (Dietzfelbinger et al., 1997). Take upper bits; the lowest ones are the weakest.
 *
 * One key a process: tables are compared with and filled from each other. No answer, digest, snapshot
 * or order may follow from it: entries know in which order they came.
 */
#pragma once

#include "base/base.h"

typedef struct {
    uint64_t white, first, second; /* the latter two odd */
} MixingKey;

extern MixingKey mixing_key;
extern PyMethodDef native_mixing_methods[];

/* Draw the key; -1 with an error set. */
int mixing_ready(void);

/* Free the place `hole` of a table by open addressing, whose `last` place has a number of ones only: those
 * behind that looked for a free place here first move up. `is_free`, `home` and `move` are said of the
 * place `at`, the last one to `hole`. The place that is left is to be emptied.
 */
#define CLOSE_HOLE(hole, last, is_free, home, move) \
    for (__typeof__(hole) at = ((hole) + 1) & (last); !(is_free); at = (at + 1) & (last)) { \
        if (((at - (home)) & (last)) >= ((at - (hole)) & (last))) { \
            move; \
            (hole) = at; \
        } \
    }

static inline uint64_t folded_product(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t mixed(uint64_t number) {
    return folded_product(number ^ mixing_key.white, mixing_key.first) * mixing_key.second;
}

/* Return where the index has the row with a key, or where it would be; rows begin with their keys, the
 * index has places + 1 of them, 0 for free, and `mask` + 1 places, of which one is free.
 */
#define INDEX_SLOT(index, mask, rows, key) index_slot(index, mask, rows, sizeof *(rows), key)
static inline uint32_t *index_slot(uint32_t *index, uint64_t mask, const void *rows, size_t size,
                                   uint64_t key) {
    for (uint64_t at = mixed(key) >> 32;; at++) {
        uint32_t *slot = &index[at & mask];
        if (*slot == 0 || *(const uint64_t *)((const char *)rows + (*slot - 1) * size) == key) {
            return slot;
        }
    }
}
