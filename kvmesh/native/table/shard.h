/* One of the 256 parts of a table: block hash -> number of the set of its holders.
 *
 * Extendible hashing: segments of 1,024 places, open addressing in 16 bytes an entry and at most three
 * quarters full, and a directory of them by the upper bits of the hash. A full segment is split in
 * two: no insertion takes longer than that, 20 us, however many blocks there are, but that the
 * directory, 8 bytes for some 500 blocks, is now and then copied to one twice as long. Entries know
 * in which order they came, as those of a Python dict do. 22 to 43 bytes a block.
 */
#pragma once

#include "base/mixing.h"

#define SHARDS 256
#define LOW_BYTE 255ULL
#define FEWEST 2U /* the least room, as a power of two */
#define ROOMS 15U
#define MANY 10U
#define DIGIT_BITS 11

typedef struct {
    uint64_t key;   /* the block; its lowest byte, the shard's number, is that of the order above 2^32 */
    uint32_t set;   /* 0: the entry is free */
    uint32_t order; /* less than those of entries that came later */
} Entry;

typedef struct {
    uint32_t room; /* a power of two */
    uint32_t used;
    uint32_t stamp; /* the last view of the table that took all it had then */
    uint32_t depth : 6;  /* so many upper bits of the hash are those of all its blocks */
    uint32_t noted : 26; /* entries that views took one by one */
    Entry entries[];
} Segment;

/* The address of a segment, a multiple of 16, and in its four lowest bits a number for its room: a search
 * then fetches nothing but the entries it looks at. */
typedef uintptr_t Home;

typedef struct {
    Home *homes;   /* 2^depth, equal ones side by side; NULL as long as nothing came */
    uint64_t next; /* the order of the next entry */
    uint32_t used;
    uint32_t depth;
} Shard;

/* A block's hash is `mixed` of it, here and below: who looks, inserts and fetches needs it once.
 *
 * Return where a new block of this shard is now, its set being for the caller to fill in; NULL with
 * MemoryError set. It must not be there yet. Other entries may change places. */
Entry *shard_insert(Shard *self, uint64_t block, uint64_t hash);

/* Take a block's entry out: others of its segment may change places. */
void shard_remove(Shard *self, uint64_t block, uint64_t hash, Entry *entry);

/* The same with the shard's number and the segment at hand. */
void segment_remove(Shard *self, uint32_t number, Segment *segment, Entry *entry);

/* Give a segment less room where it is hardly filled: it is another then. `hash` belongs to it. -1 with
 * MemoryError set. */
int segment_fit(Shard *self, uint32_t number, Segment *segment, uint64_t hash);

/* Make shard `number` as large as `blocks` more need, or as small as those that are left do; -1
 * with MemoryError set and nothing changed. O(entries). */
int shard_resize(Shard *self, uint32_t number, uint32_t blocks);

/* Return entries in the order they came in, of several of one order the first alone, in memory for
 * PyMem_Free, which that of `entries`, freed if it is another, must be; NULL with MemoryError set.
 * O(entries). */
Entry *entries_sorted(Entry *entries, uint32_t *count);

static inline uint64_t order_of(const Entry *entry) {
    return (entry->key & LOW_BYTE) << 32 | entry->order;
}

/* The same in slices. */
typedef struct {
    Entry *from, *to; /* `from` has all entries at any time; both are for PyMem_Free */
    uint32_t count, at, shift;
    uint8_t stage;
    uint64_t least, most;
    uint32_t starts[(1 << DIGIT_BITS) + 1];
} Sorting;

/* Begin with entries in memory for PyMem_Free, which are the caller's on failure: -1 with MemoryError
 * set. Then take steps of so many entries until one returns 1: `from` has them sorted. */
int sorting_open(Sorting *self, Entry *entries, uint32_t count);
int sorting_step(Sorting *self, uint32_t most);

void shard_free(Shard *self);

/* Where in the directory a hash belongs; there must be one. */
static inline uint64_t shard_place(const Shard *self, uint64_t hash) {
    return hash >> 1 >> (63 - self->depth);
}

static inline Segment *home_segment(Home home) { return (Segment *)(home & ~(Home)ROOMS); }

/* Return the segment that a hash belongs to; there must be one. */
static inline Segment *shard_segment(const Shard *self, uint64_t hash) {
    return home_segment(self->homes[shard_place(self, hash)]);
}

/* The room of each number as a power of two: there are larger steps where hardly anybody is. */
static inline uint32_t room_bits(uint32_t number) {
    return number < MANY ? number + FEWEST : 3 * number - 16;
}

static inline uint32_t home_last(Home home) { return (1U << room_bits(home & ROOMS)) - 1; }

/* Where a block's entry is unless others are there already. */
static inline uint32_t home_of(uint64_t hash, uint32_t last) { return (uint32_t)(hash >> 32) & last; }

/* Return where a block is, NULL when it is not there. */
static inline Entry *shard_find(const Shard *self, uint64_t block, uint64_t hash) {
    NEED_OR_NULL(self->homes);
    Home home = self->homes[shard_place(self, hash)];
    Entry *entries = home_segment(home)->entries;
    uint32_t last = home_last(home), at = home_of(hash, last);
    while (entries[at].set) {
        if ((entries[at].key ^ block) <= LOW_BYTE) {
            return entries + at;
        }
        at = (at + 1) & last;
    }
    return NULL;
}

/* Have the processor fetch what `shard_find` will look at first. */
static inline void shard_prefetch(const Shard *self, uint64_t hash) {
    if (self->homes != NULL) {
        Home home = self->homes[shard_place(self, hash)];
        __builtin_prefetch(home_segment(home)->entries + home_of(hash, home_last(home)));
    }
}

/* The same for a change, which counts the segment's entries, too. */
static inline void shard_prefetch_change(const Shard *self, uint64_t hash) {
    if (self->homes != NULL) {
        __builtin_prefetch(shard_segment(self, hash));
        shard_prefetch(self, hash);
    }
}

/* Go through the segments, each once: NULL at the end. Start with *place 0. */
static inline Segment *shard_walk(const Shard *self, uint64_t *place) {
    if (self->homes == NULL || *place >> self->depth) {
        return NULL;
    }
    Segment *segment = home_segment(self->homes[*place]);
    *place += 1ULL << (self->depth - segment->depth);
    return segment;
}
