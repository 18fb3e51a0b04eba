/* Interned sets of workers: a block names its holders by a number instead of a bitmask.
 *
 * Equal sets have equal numbers as long as anything refers to them. Memory: about 150 bytes a set
 * plus 8 a 64 workers. No operation costs more than O(workers / 64): buckets are added one
 * by one.
 */
#pragma once

#include "base/base.h"

/* No set, or no memory for one. */
#define NO_SET 0U

typedef struct {
    uint64_t refs;    /* blocks and pins that name it; nothing names a set without any */
    uint64_t hash;
    uint64_t *words;  /* bit s of word w: slot 64 w + s; the last word is not 0. NULL: number unused */
    PyObject *mask;   /* the same as an int, once someone asked for it */
    uint32_t size;    /* words */
    uint32_t next;    /* in its bucket, or in the list of unused numbers */
} Set;

typedef struct {
    Set *sets;
    uint32_t *buckets;
    uint64_t *scratch;
    uint32_t used, room, unused, interned, scratch_room;
    uint32_t bucket_count, bucket_room, level; /* level: a power of two, more than half as many */
} Sets;

int sets_init(Sets *self);
void sets_clear(Sets *self);

/* Return the number of the set of these words (trailing zeros allowed, not all may be 0), NO_SET
 * with MemoryError set. Refer to it before anything else is interned or released. */
uint32_t sets_intern(Sets *self, const uint64_t *words, uint32_t size);

/* Return the set with or without a slot, which must not or must be in it. A set that would be
 * empty must not be asked for. NO_SET with MemoryError set. */
uint32_t sets_flipped(Sets *self, uint32_t number, uint32_t slot);

/* Release one reference; the last one frees the number for another set. */
void sets_release(Sets *self, uint32_t number);

/* Return the set as an int, borrowed; NULL with MemoryError set. */
PyObject *sets_mask(Sets *self, uint32_t number);

/* Give room for `size` words that stays valid until the next call here; NULL with MemoryError. */
uint64_t *sets_scratch(Sets *self, uint32_t size);

static inline int sets_has(const Sets *self, uint32_t number, uint32_t slot) {
    const Set *set = self->sets + number;
    return slot / 64 < set->size && (set->words[slot / 64] >> (slot % 64) & 1);
}

static inline void sets_refer(Sets *self, uint32_t number) { self->sets[number].refs++; }

/* An int as bit words. `words` is NULL for none and after an error. */
typedef struct {
    uint64_t *words;
    uint32_t size;
} Mask;

/* Read an int >= 0; -1 with an error set. Release it with PyMem_Free(mask->words). */
int mask_read(PyObject *object, Mask *mask);

/* Return the int of bit words. */
PyObject *mask_int(const uint64_t *words, uint32_t size);

/* Return the only slot of a mask with one bit, -1 with ValueError set. */
int64_t mask_slot(PyObject *object);

static inline int masks_meet(const uint64_t *a, uint32_t a_size, const Mask *b) {
    uint32_t size = a_size < b->size ? a_size : b->size;
    for (uint32_t i = 0; i < size; i++) {
        if (a[i] & b->words[i]) {
            return 1;
        }
    }
    return 0;
}
