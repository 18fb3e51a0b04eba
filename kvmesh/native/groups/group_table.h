/* What every cache group of an engine holds of each prefix, and where a hit may end:
 * core.engines.kv_events.group_table, for hashes that cover nothing behind their block.
 *
 * A node is a prefix: a KeyedRecord, its key the content hash, `one` its parent (NO_RECORD: none), `two` its
 * first child. The chain of each tier is a `Contents`. 60 B a prefix, 30 a block of a group.
 */
#pragma once

#include "engines/contents.h"

#define MOST_CACHE_GROUPS 64

enum { ROLE_FULL, ROLE_WINDOW, ROLE_STATE };

/* A block is a KeyedRecord: its key the engine's hash, `one` its node, `two` the units of a block that is
 * several in one, else 0. Columns are by the place of a tier among the tiers. */
typedef struct {
    int role;
    uint32_t step, need;
    long long count;
    Keyed held;
    Column references[MOST_TIERS]; /* of blocks */
    Column covers[MOST_TIERS];     /* of nodes: how many blocks are held there */
    Column runs[MOST_TIERS];       /* of nodes: how many blocks in a row end there */
} CacheGroup;

/* Which nodes of a tier are ends, and which of them are in doubt since `group_take_ends`. */
typedef struct {
    Column ends, marks;
    U32s suspect;
    Blocks lost; /* keys of ends whose node is gone */
} TierEnds;

typedef struct {
    Keyed nodes;
    SideLinks siblings;
    Column depths, uses, roots, high_roots;
    Contents contents;
    TierEnds tiers[MOST_TIERS];
    CacheGroup *groups[MOST_CACHE_GROUPS];
    int group_count, full_count;
    uint32_t align, drop;
    int removes; /* what changed since `group_settle` are removals */
    long long blocks, boundaries, most_blocks;
    uint32_t most_references;
    U32s covered, frontier, next, changed, made; /* scratch */
    Blocks gone, fresh;
} GroupTable;

void group_table_init(GroupTable *self);

/* Forget every block; groups and rule stay. */
void group_table_clear(GroupTable *self);
void group_table_free(GroupTable *self);

/* Return the node that an engine's hash names; NO_RECORD for none. */
uint32_t group_find(const GroupTable *self, uint64_t hash);

/* Note that a group began, or ceased, to hold a node in a tier; -1 with MemoryError set. */
int group_gained(GroupTable *self, int tier, const CacheGroup *group, uint32_t node);
int group_lost(GroupTable *self, int tier, const CacheGroup *group, uint32_t node);

/* Put a node into a tier's chain, or take it out; -1 with MemoryError set. */
int group_chain(GroupTable *self, int tier, uint32_t node, int more);

/* Forget that a node was an end: it goes. -1 with MemoryError set. */
int group_lose_ends(GroupTable *self, uint32_t node);

/* Follow a tier from now on; -1 with an error set. Appends what that tells. */
int group_open(GroupTable *self, int number, const EventTypes *types, PyObject *events);

/* Append what became visible, or is not any more; -1 with an error set. */
int group_settle(GroupTable *self, const EventTypes *types, PyObject *events);

/* Append the ends that are none any more, and the new ones; -1 with an error set. */
int group_take_ends(GroupTable *self, const EventTypes *types, PyObject *gone, PyObject *fresh);

/* Append all that is visible, and every end; -1 with an error set. */
int group_dump(GroupTable *self, const EventTypes *types, PyObject *events);

/* Work out anew what all blocks mean; -1 with an error set. */
int group_settle_rule(GroupTable *self, const EventTypes *types);

/* Count blocks; the number of those that did not fit, -1 with an error set. `ends`: NO_RECORD to leave out. */
typedef struct {
    CacheGroup *group;
    int tier; /* its number */
    uint32_t span, times;
    const uint64_t *hashes, *ends, *path;
    const uint8_t *left_out;
    Py_ssize_t count, path_count;
    int has_before;
    uint64_t before, root;
} GroupStore;

long long group_store(GroupTable *self, const GroupStore *store);

/* Count blocks less; how many were not held there, -1 with MemoryError set. */
long long group_remove(GroupTable *self, CacheGroup *group, int number, const uint64_t *hashes,
                       Py_ssize_t count);

/* Count what a block covers in a tier; -1 with MemoryError set. */
int group_collect(GroupTable *self, const CacheGroup *group, uint32_t block);

/* Return a tier's place, -1: it is not open. */
static inline int group_tier(const GroupTable *self, int number) {
    for (int at = 0; at < self->contents.tier_count; at++) {
        if (self->contents.tiers[at].number == number) {
            return at;
        }
    }
    return -1;
}

/* Return the node so many units before one; NO_RECORD for none. */
static inline uint32_t group_above(const GroupTable *self, uint32_t node, uint32_t units) {
    while (units-- && node != NO_RECORD) {
        node = keyed_at(&self->nodes, node)->one;
    }
    return node;
}

/* Tell whether a group holds a node in a tier or nearer. */
static inline int group_holds(const CacheGroup *group, int upto, uint32_t node) {
    for (int tier = 0; tier <= upto; tier++) {
        if (column_get(group->covers + tier, node)) {
            return 1;
        }
    }
    return 0;
}

static inline uint64_t group_key(const GroupTable *self, uint32_t node) {
    return keyed_at(&self->nodes, node)->key;
}
