/* Records of 16 bytes that are found by a u64 key, and columns of u32s beside them.
 *
 * Records lie in segments that never move, numbered from 0; numbers of removed ones are used again.
 * The index has 256 parts of open addressing in 4 bytes an entry (7 bits of the key's hash, 25 of the
 * record's number), each grown by itself: at 1M records that is 4,000 entries, 0.3 ms, and nothing
 * else takes longer. Whoever chooses keys cannot choose where they go: mixing.h.
 */
#pragma once

#include "base/mixing.h"

#define KEYED_PARTS 256
#define KEYED_SEGMENT 4096U
#define NO_RECORD ((1U << 25) - 1)

typedef struct {
    uint64_t key;
    uint32_t one, two; /* the owner's; `one` of a number that is not used names the next such */
} KeyedRecord;

typedef struct {
    uint32_t *places;
    uint32_t room, used;
} KeyedPart;

typedef struct {
    KeyedRecord **segments;
    uint32_t segment_count, segment_room;
    uint32_t next;   /* numbers from here on were never used */
    uint32_t unused; /* first of those that are not used any more, NO_RECORD for none */
    KeyedPart parts[KEYED_PARTS];
} Keyed;

/* A u32 for each record; `fill` where nobody wrote. */
typedef struct {
    uint32_t **segments;
    uint32_t segment_room, fill;
} Column;

void keyed_init(Keyed *self);
void keyed_free(Keyed *self);

/* Return a new record's number, NO_RECORD with MemoryError set. It is not in the index yet. */
uint32_t keyed_make(Keyed *self, uint64_t key);

/* Let a number be used again; it must not be in the index. */
void keyed_drop(Keyed *self, uint32_t number);

/* Put a record that is not there into the index; -1 with MemoryError set. */
int keyed_enter(Keyed *self, uint32_t number);

/* Take a record out of the index, or put `instead`, of the same key, in its place. */
void keyed_leave(Keyed *self, uint32_t number, uint32_t instead);

void column_init(Column *self, uint32_t fill);
void column_free(Column *self);

/* Return where to write a record's value; NULL with MemoryError set. */
uint32_t *column_make(Column *self, uint32_t number);

/* Write all values of a column into an empty one; -1 with MemoryError set, and then only part of them. */
int column_copy(Column *to, const Column *from);

static inline KeyedRecord *keyed_at(const Keyed *self, uint32_t number) {
    return self->segments[number / KEYED_SEGMENT] + number % KEYED_SEGMENT;
}

/* Of a key's hash 8 bits are its part's, the next 32 are for its place, 7 more are its tag. */
static inline uint32_t keyed_home(const KeyedPart *part, uint64_t hash) {
    return (uint32_t)((hash >> 24 & UINT32_MAX) * part->room >> 32);
}

static inline uint32_t keyed_tag(uint64_t hash) { return (uint32_t)(hash >> 17 & 127) << 25; }

/* Return the number of a key's record, NO_RECORD for none. */
static inline uint32_t keyed_find(const Keyed *self, uint64_t key) {
    uint64_t hash = mixed(key);
    const KeyedPart *part = self->parts + (hash >> 56);
    if (!part->room) {
        return NO_RECORD;
    }
    uint32_t at = keyed_home(part, hash), tag = keyed_tag(hash);
    while (part->places[at] != UINT32_MAX) {
        uint32_t number = part->places[at] & NO_RECORD;
        if ((part->places[at] & ~NO_RECORD) == tag && keyed_at(self, number)->key == key) {
            return number;
        }
        at = at + 1 == part->room ? 0 : at + 1;
    }
    return NO_RECORD;
}

/* Have the processor fetch what `keyed_find` will look at first. */
static inline void keyed_prefetch(const Keyed *self, uint64_t key) {
    uint64_t hash = mixed(key);
    const KeyedPart *part = self->parts + (hash >> 56);
    if (part->room) {
        __builtin_prefetch(part->places + keyed_home(part, hash));
    }
}

static inline uint32_t column_get(const Column *self, uint32_t number) {
    uint32_t segment = number / KEYED_SEGMENT;
    if (segment >= self->segment_room || self->segments[segment] == NULL) {
        return self->fill;
    }
    return self->segments[segment][number % KEYED_SEGMENT];
}

/* Write a value that may be the fill already: no memory is taken for that. -1 with MemoryError set. */
static inline int column_set(Column *self, uint32_t number, uint32_t value) {
    if (column_get(self, number) == value) {
        return 0;
    }
    uint32_t *place = column_make(self, number);
    NEED(place);
    *place = value;
    return 0;
}
