/* Blocks of one worker: block -> the lease that it is found by, and who follows it.
 *
 * Open addressing in 16 bytes an entry, 22 to 43 a block with its room; beyond a few thousand
 * blocks in 64 parts, so that no call grows more than one of them by much. O(1).
 */
#pragma once

#include "base/arrays.h"
#include "base/mixing.h"

/* At least one of the two numbers is not 0. */
typedef struct {
    uint64_t block;
    uint32_t lease;     /* from 1; 0: not believed, only followed */
    uint32_t followers; /* from 1; 0: none */
} Believed;

typedef struct {
    Believed *entries;
    uint32_t room, used; /* room: a power of two, or 0 */
} Part;

/* The first blocks of the leases that follow one block, in the order they came. */
typedef struct {
    union {
        uint64_t one;
        uint64_t *many;
        uint32_t next;   /* number that is not used either */
    } blocks;
    uint32_t count, room; /* room 0: the only one is in place */
} Followers;

/* All zeros is an empty one. */
typedef struct {
    Part *parts;
    uint32_t part_bits; /* parts: 1 << part_bits, once there are any */
    uint32_t follower_count, follower_room, unused_followers;
    Followers *followers;
    uint64_t used;
} Tree;

/* Return the entry of a block whose hash is `mixed` of it, valid until the next change; NULL when there
 * is none. */
Believed *tree_find_hashed(const Tree *self, uint64_t block, uint64_t hash);

/* Make room for entries of these blocks; -1 with MemoryError set. */
int tree_reserve(Tree *self, const uint64_t *blocks, Py_ssize_t count);

/* Have the processor fetch where the entry of a block will be; there must be room. */
void tree_prefetch(const Tree *self, uint64_t hash);

/* Return the entry of a block, a new one of zeros where there is none; there must be room. The
 * caller fills it before anything else is done. */
Believed *tree_enter(Tree *self, uint64_t block, uint64_t hash);

/* Take an entry and its followers away. */
void tree_drop(Tree *self, Believed *entry);

/* Note that `block` follows `parent`, for which there must be room; -1 with MemoryError set. */
int tree_follow(Tree *self, uint64_t parent, uint64_t block);

/* Note that it alone does so. */
int tree_follow_alone(Tree *self, uint64_t parent, uint64_t block);

/* Return who follows an entry, NULL for nobody. */
const uint64_t *tree_followers(const Tree *self, const Believed *entry, uint32_t *count);

void tree_clear(Tree *self);

static inline Believed *tree_find(const Tree *self, uint64_t block) {
    return tree_find_hashed(self, block, mixed(block));
}

static inline uint32_t tree_lease(const Tree *self, uint64_t block) {
    const Believed *entry = tree_find(self, block);
    return entry == NULL ? 0 : entry->lease;
}
