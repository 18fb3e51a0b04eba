/* For how long each block is believed to be cached at one worker: core.overlap.leases, compiled.
 *
 * The same runs, splits and turns as there, so that blocks leave in the same order. A block is an
 * entry of 16 bytes in a hash table (22 to 43 with its room) and 8 bytes of its run.
 */
#ifndef KVMESH_LEASES_H
#define KVMESH_LEASES_H

#include "table.h"

#define RUN_BLOCKS 64

/* u64s in a row, in memory that stays. All zeros is an empty one. */
typedef struct {
    uint64_t *items;
    Py_ssize_t count, room;
} Blocks;

/* A block of this worker: the lease it is found by, and who follows it; one of them is not 0. */
typedef struct {
    uint64_t block;
    uint32_t lease;    /* number, from 1; 0: not believed, only followed */
    uint32_t children; /* number, from 1, of the first blocks of leases that follow; 0: none */
} Believed;

/* One part of the hash table, open addressing; growing it is O(its entries). */
typedef struct {
    Believed *entries;
    uint32_t room, used; /* room: a power of two, or 0 */
} Part;

/* A run of blocks with one end. */
typedef struct {
    double until;
    uint32_t count;      /* of blocks; 0: the number is unused */
    uint32_t generation; /* counts what the number stood for: older dues mean others */
    union {
        uint64_t one;    /* the only block */
        uint64_t *many;
        uint32_t next;   /* unused number */
    } run;
} Lease;

typedef struct {
    uint32_t lease, generation;
} DueLease;

/* The leases that end at one time, or did so before they were extended: the last one goes first. */
typedef struct {
    double until;
    DueLease *items;
    uint32_t count, room;
} Due;

/* The first blocks of the leases that follow one block. */
typedef struct {
    union {
        uint64_t one;
        uint64_t *many;
        uint32_t next;
    } blocks;
    uint32_t count, room; /* room 0: the only one is in place */
} Children;

/* One worker's blocks. Owned by a dict of Approx and by the ends that name it. */
typedef struct {
    PyObject_HEAD
    Holding *holding;
    uint32_t slot; /* NO_SLOT once the worker was removed */
    Part *parts;   /* 1 while there are few blocks, then PARTS */
    uint32_t part_count;
    uint32_t lease_count, lease_room, unused_lease;
    uint32_t children_count, children_room, unused_children;
    Lease *leases;
    Children *children;
    uint64_t entries;
    Due *dues; /* by time, from `first_due` on */
    Py_ssize_t first_due, due_count, due_room;
    Blocks gone; /* scratch */
} Leases;

#define NO_SLOT UINT32_MAX

extern PyTypeObject leases_type;

/* Return when the next lease ends, infinity for never. */
static inline double leases_earliest(const Leases *self) {
    return self->due_count ? self->dues[self->first_due].until : Py_HUGE_VAL;
}

/* Believe blocks, root first, until then; return from which on they were not believed before, -1
 * with MemoryError set and nothing changed. `new_end`: nothing ended at that time before. */
Py_ssize_t leases_extend(Leases *self, const uint64_t *blocks, Py_ssize_t count, double until,
                         int *new_end);

/* Append at most `most` blocks to `gone`, those that end first, and believe them no longer; perhaps
 * none although there are more. -1 with MemoryError set and nothing changed. */
int leases_take(Leases *self, long long most, Blocks *gone);

/* Append blocks, and what follows them, to `gone`, and believe them no longer. -1 as above. */
int leases_revoke(Leases *self, const uint64_t *blocks, Py_ssize_t count, Blocks *gone);

/* Give up everything; the holding is the caller's affair. */
void leases_clear(Leases *self);

/* Make room for so many more; -1 with MemoryError set. */
int blocks_reserve(Blocks *self, Py_ssize_t more);

#endif
