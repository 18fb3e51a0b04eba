/* For how long each block is believed to be cached at one worker, in runs of blocks.
 *
 * Those leave first that end first, of these what was asked for last, leaves first. Beside its entry
 * in the tree a block takes 8 bytes of its run; a run takes 40 and what malloc adds.
 */
#pragma once

#include "beliefs/believed.h"
#include "table/table.h"

#include <math.h>

#define RUN_BLOCKS 64
#define NO_SLOT UINT32_MAX

/* A run of blocks with one end. */
typedef struct {
    double until;
    uint32_t count;  /* of blocks; 0: the number is unused */
    uint32_t serial; /* tells what a number stands for now from what it stood for before */
    union {
        uint64_t one; /* the only block */
        uint64_t *many;
        uint32_t next; /* number that is not used either */
    } run;
} Lease;

typedef struct {
    uint32_t lease, serial;
} DueLease;

/* Leases that end at one time, or did so before they were extended; the last one goes first. */
typedef struct {
    double until;
    DueLease *items;
    uint32_t count, room;
} Due;

/* One worker's. Owned by the dict of an Approx and by the ends that name it. */
typedef struct {
    PyObject_HEAD
    Holding *holding;
    uint32_t slot; /* NO_SLOT once the worker was removed */
    uint32_t lease_count, lease_room, unused_lease, serial;
    Lease *leases;
    Tree tree;
    Due *dues; /* by time, from `first_due` on */
    Py_ssize_t first_due, due_count, due_room;
    Blocks waiting; /* scratch */
} Leases;

extern PyTypeObject leases_type;

/* Return leases of a new Holding for the worker of a slot; NULL with MemoryError set. */
Leases *leases_make(uint32_t slot);

/* Return when the next lease ends, infinity for never. */
static inline double leases_earliest(const Leases *self) {
    return self->due_count ? self->dues[self->first_due].until : INFINITY;
}

/* Believe blocks, root first, until then; return from which on they were not believed before, -1
 * with MemoryError set: then some may be extended, or believed without being in the table.
 * `new_end`: nothing ended at that time before; also set after an error. `table`: where new blocks
 * will be put next. O(count / 64 + news). */
Py_ssize_t leases_extend(Leases *self, const uint64_t *blocks, Py_ssize_t count, double until,
                         const Table *table, int *new_end);

/* Append at most `most` blocks to `gone`, those that end first, and believe them no longer; fewer,
 * perhaps none, may come although more are believed. -1 with MemoryError set: `gone` has what went
 * before. */
int leases_take(Leases *self, long long most, Blocks *gone);

/* Append blocks, and what follows them, to `gone`, and believe them no longer. As above. */
int leases_revoke(Leases *self, const uint64_t *blocks, Py_ssize_t count, Blocks *gone);

/* Give up everything; the holding is the caller's affair. */
void leases_clear(Leases *self);
