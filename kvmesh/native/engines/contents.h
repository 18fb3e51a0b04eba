/* The contents of one engine's blocks: which are held in which tier, as a tree, prefix-closed.
 *
 * What core.engines.kv_events.closure does of one tier, in one set of nodes for all: a node is a content
 * hash, its parent and its children. A node that no tier holds stays, without a parent, as long
 * as it has children. Children, and first blocks, are gone through by their hashes in rising order, as
 * there. 30 bytes a node with its place in the index, 4 more for each further tier and with roots.
 */
#pragma once

#include "engines/engine_batch.h"
#include "engines/keyed.h"
#include "engines/side_links.h"

#define NO_NODE NO_RECORD
#define ROOT_HASH 0
#define MOST_TIERS 8

/* A node is a KeyedRecord: its key the hash, `one` its parent, `two` its first child. */
#define FIRST_BLOCKS NO_NODE        /* the parent of those that have none */
#define LET_GO (NO_NODE - 1)        /* and of those that nobody holds */
#define COUNT_BITS 30
#define COUNT_MASK ((1U << COUNT_BITS) - 1)
enum { NOT_CLOSED, VISIBLE, HIDDEN }; /* in the upper bits of a state */

/* One tier or nearer. */
typedef struct {
    int number;
    int seen;         /* anything was ever held here */
    Column states;    /* of nodes: closure, and how many blocks stand for it */
    Column references; /* of blocks, by residents.c; the first tier's stand in the blocks themselves */
    SideLinks hidden; /* in the order in which they were hidden */
    uint32_t oldest, newest;
    long long held, hidden_count, forgotten;
    U32s changed;     /* nodes first held, or last held, by the event under way */
} Tier;

typedef struct {
    Keyed nodes;
    Column roots;     /* low and high half of a node's root, where there are any */
    Column high_roots;
    SideLinks siblings;
    Tier tiers[MOST_TIERS]; /* nearest first */
    int tier_count;
    U32s stack, found; /* scratch */
    Blocks run;
    long long max_hidden;
    Py_ssize_t max_run;
} Contents;

/* Types of core.blocks.events, and the list that takes their objects. */
typedef struct {
    PyObject *stored, *removed, *cleared;
} EventTypes;

void contents_init(Contents *self);
void contents_clear(Contents *self);

/* Return the node of a content, made if need be, under a parent; NO_NODE with MemoryError set. */
uint32_t contents_node(Contents *self, uint64_t hash, uint32_t parent, uint64_t root);

/* Return the node of a content that a new one will be put under at once, made if need be, held or not;
 * NO_NODE with MemoryError set. */
uint32_t contents_parent(Contents *self, uint64_t hash);

/* Count a block more, or less, that stands for a node in a tier. -1 with MemoryError set. */
int contents_add(Contents *self, Tier *tier, uint32_t node);
int contents_remove(Contents *self, Tier *tier, uint32_t node);

/* Append the events that follow from what was added, or removed, since; -1 with an error set. */
int contents_held(Contents *self, const EventTypes *types, PyObject *events);
int contents_dropped(Contents *self, const EventTypes *types, PyObject *events);

/* Return the tier of that number, opened as a copy of the next nearer one, whose blocks are its, too;
 * NULL with an error set. O(blocks) the first time. */
Tier *contents_tier(Contents *self, int number, const EventTypes *types, PyObject *events);

/* Append events that store all that is visible in a tier; -1 with an error set. */
int contents_dump(Contents *self, const Tier *tier, const EventTypes *types, PyObject *events);

static inline uint64_t contents_hash(const Contents *self, uint32_t node) {
    return node == FIRST_BLOCKS ? ROOT_HASH : keyed_at(&self->nodes, node)->key;
}

static inline uint64_t contents_root(const Contents *self, uint32_t node) {
    return column_get(&self->roots, node) | (uint64_t)column_get(&self->high_roots, node) << 32;
}

static inline uint32_t tier_closure(const Tier *tier, uint32_t node) {
    return column_get(&tier->states, node) >> COUNT_BITS;
}
