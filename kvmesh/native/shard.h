/* One of the 256 parts of a table: block hash -> number of the set of its holders.
 *
 * Open addressing in 16 bytes an entry, at most three quarters full; entries know in which order
 * they came, as those of a Python dict do. 22 to 43 bytes a block. O(1); growing, and numbering
 * anew, is O(entries): 1 ms in a table of 16M blocks.
 */
#ifndef KVMESH_SHARD_H
#define KVMESH_SHARD_H

#include "core.h"

#define SHARDS 256
#define NOWHERE UINT32_MAX

typedef struct {
    uint64_t block;
    uint32_t set;   /* 0: the entry is free */
    uint32_t order; /* less than those of entries that came later */
} Entry;

typedef struct {
    Entry *entries;
    uint32_t room; /* a power of two, or 0 */
    uint32_t used;
    uint32_t next; /* the order of the next entry; at most 4 * room */
    uint32_t shift;
} Shard;

/* Return where a new block of this shard is now, its set being for the caller to fill in;
 * NOWHERE with MemoryError set. It must not be there yet. */
uint32_t shard_insert(Shard *self, uint64_t block);

/* Take an entry out: others may change places. */
void shard_remove(Shard *self, uint32_t at);

/* Make it as large as `blocks` more need, or as small as those that are left do; -1 with
 * MemoryError set and nothing changed. */
int shard_resize(Shard *self, uint32_t blocks);

/* Copy the entries without gaps, to be read in order, not to be searched; -1 with MemoryError. */
int shard_copy(const Shard *self, Shard *copy);

/* Return the places of all entries in the order they came, for PyMem_Free; NULL with MemoryError. */
uint32_t *shard_ordered(const Shard *self);

void shard_free(Shard *self);

static inline uint32_t shard_home(const Shard *self, uint64_t block) {
    return (uint32_t)(((block ^ block >> 32) * 0x9E3779B97F4A7C15ULL) >> self->shift);
}

/* Return where a block is, NOWHERE when it is not there. */
static inline uint32_t shard_find(const Shard *self, uint64_t block) {
    if (!self->room) {
        return NOWHERE;
    }
    uint32_t last = self->room - 1, at = shard_home(self, block);
    while (self->entries[at].set) {
        if (self->entries[at].block == block) {
            return at;
        }
        at = (at + 1) & last;
    }
    return NOWHERE;
}

/* Have the processor fetch what `shard_find` will look at first. */
static inline void shard_prefetch(const Shard *self, uint64_t block) {
    if (self->room) {
        __builtin_prefetch(self->entries + shard_home(self, block));
    }
}

#endif
