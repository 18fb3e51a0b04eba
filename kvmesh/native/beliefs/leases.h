/* For how long each block is believed to be cached at one worker, in runs of blocks.
 *
 * Those leave first that end first, of these what was asked for last, leaves first. Beside its entry
 * in the tree a block takes 8 bytes of its run; a run takes 40 and what malloc adds.
 */
#pragma once

#include "beliefs/believed.h"
#include "beliefs/prompt_slots.h"
#include "table/table.h"

#include <math.h>

#define RUN_BLOCKS 64
#define NO_SLOT UINT32_MAX

/* A run of blocks with one end. */
typedef struct {
    double until;
    uint16_t count;  /* of blocks; 0: the number is unused */
    uint16_t stands; /* each is one of so many blocks of a prompt */
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
    double before;  /* until when the last block was believed that was extended last, -inf: none was */
    /* What its answers taught, see learned.c: */
    long long stands;         /* blocks of prompts that those believed stand for */
    long long limit, told;    /* blocks that the engine seems to hold, -1: not known; that it says, 0 */
    long long output;         /* blocks of long answers of late, which follow prompts there */
    uint16_t stride;          /* what a block stands for behind the whole ones */
    int learns;               /* its answers tell what was cached */
    int goes_on;              /* whether prompts of late had the answer before them in them: from -4 to 4 */
    Py_ssize_t slotted;       /* its place among those with slots, from 1; 0: it has none */
    PromptSlots slots;
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

#define WHOLE_BLOCKS 128
#define STRIDE 16 /* of a thinned prompt's blocks behind those each such one is kept */

/* Append at most `most` blocks to `gone`, those that end first, and believe them no longer; fewer,
 * perhaps none, may come although more are believed. -1 with MemoryError set: `gone` has what went
 * before. */
int leases_take(Leases *self, long long most, Blocks *gone);

/* Append blocks, and what follows them, to `gone`, and believe them no longer. As above. */
int leases_revoke(Leases *self, const uint64_t *blocks, Py_ssize_t count, Blocks *gone);

/* Give up everything; the holding is the caller's affair. */
void leases_clear(Leases *self);
