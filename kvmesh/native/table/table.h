/* Block tables: which workers hold which block, in one tier.
 *
 * A table is 256 shards (shard.c) of block -> set of workers (sets.c), and a Holding of each worker.
 * frozen.c keeps it as it was at one moment, part.c writes that into a snapshot, loader.c fills a table
 * from one.
 */
#pragma once

#include "base/base.h"
#include "table/sets.h"
#include "table/shard.h"

#define BLOCK_BYTES 8
#define KEY_BYTES 7 /* a block in a snapshot: its lowest byte is the number of its shard */

/* What one worker holds in one table; the digest is the sum of its hashes mod 2^64. */
typedef struct {
    PyObject_HEAD
    PyObject *bit;
    uint32_t slot;
    long long blocks;
    uint64_t digest;
} Holding;

typedef struct Frozen Frozen;

typedef struct {
    PyObject_HEAD
    PyObject *holdings;   /* dict: worker -> Holding */
    uint32_t *singles;    /* slot -> the set of that slot alone, which stays; NO_SET: not made yet */
    uint32_t single_count;
    uint64_t blocks;
    uint64_t changes;     /* counts what may have moved entries or freed sets */
    Frozen *frozen;       /* open views, each of which takes itself out */
    uint32_t freezes;     /* how many there ever were */
    Sets sets;
    Shard shards[SHARDS];
} Table;

/* What a view took of a shard before it changed; its entries refer to sets of the table. Of several of one
 * order the first counts. */
typedef struct {
    Entry *entries;
    uint32_t count, room;
} Kept;

/* A table as it was: an entry is copied when it is about to change before it was read, those of a segment
 * together once that were as many. */
struct Frozen {
    PyObject_HEAD
    Table *table;
    Frozen *next;
    uint32_t number;         /* segments of this stamp or a later one are in `kept` */
    uint8_t open;
    uint8_t pending[SHARDS]; /* still to be read */
    uint64_t ends[SHARDS];   /* entries from this order on came later */
    Kept kept[SHARDS];
};

/* The entries of a shard. */
typedef struct {
    Entry *entries;
    uint32_t count;
} Reading;

extern PyTypeObject holding_type, frozen_type, loader_type, part_type;

/* Read the number of a shard; -1 with an error set. */
int shard_number(PyObject *object, uint32_t *number);

/* Return what a view reads of a shard, in the order it came; `entries` is NULL with an error set. Free
 * them. Say when that is done: the view need not have it any more. */
Reading frozen_read(Frozen *self, uint32_t number);
void frozen_done(Frozen *self, uint32_t number);

/* Copy some `most` entries of a shard that a view has to read; 1 once it has them all, -1 with an error
 * set. */
int frozen_keep_some(Frozen *self, uint32_t number, uint32_t most);

/* Copy no more; safe to call twice. */
void frozen_close(Frozen *self);

/* Close it, and let go what was copied, and the table. */
void frozen_free(Frozen *self);

PyObject *frozen_columns(Frozen *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *frozen_part(Frozen *self, PyObject *const *args, Py_ssize_t nargs);

/* Read a block hash: 1, 0 when no block has that hash (too large or below 0), -1 with TypeError. */
int read_block(PyObject *object, uint64_t *block);

/* Return the holding of a slot that holds nothing yet, in no table's `holdings`; NULL with
 * MemoryError set. */
Holding *holding_make(uint32_t slot);

/* Add blocks, or take them away; those held, or not held, already change nothing. -1 with
 * MemoryError set: the blocks before are done. */
int table_put(Table *self, Holding *holding, const uint64_t *blocks, Py_ssize_t count);
int table_take(Table *self, Holding *holding, const uint64_t *blocks, Py_ssize_t count);

/* Return the set of one slot alone, made and kept when it is new; NO_SET with MemoryError set. */
uint32_t table_single(Table *self, uint32_t slot);

/* The same with packed blocks, aligned or not, perhaps with a list that takes those that were not held;
 * and whether a slot holds a block. */
int table_store_run(Table *self, Holding *holding, const uint8_t *run, Py_ssize_t count);
int table_remove_run(Table *self, Holding *holding, const uint8_t *run, Py_ssize_t count);
int table_remove_noting(Table *self, Holding *holding, const uint8_t *run, Py_ssize_t count,
                        PyObject *missing);
int table_held_by(const Table *self, uint64_t block, uint32_t slot);

/* Let open views copy one segment of a shard; -1 with MemoryError set and nothing changed. */
int table_keep_segment(Table *self, uint32_t number, Segment *segment);

/* The same for one entry of a shard, of that hash, which changes or goes. */
int table_keep_entry(Table *self, uint32_t number, uint64_t hash, const Entry *entry);

/* Methods of Table that make a Frozen, and a Loader. */
PyObject *table_freeze(Table *self, PyObject *nothing);
PyObject *table_loader(Table *self, PyObject *masks);

static inline uint64_t run_block(const uint8_t *run, Py_ssize_t at) {
    uint64_t block;
    memcpy(&block, run + at * BLOCK_BYTES, sizeof block);
    return block;
}

/* Make an entry name another set. */
static inline void rename_entry(Table *self, Entry *entry, uint32_t set) {
    uint32_t before = entry->set;
    entry->set = set;
    sets_refer(&self->sets, set);
    sets_release(&self->sets, before);
}

/* Add a block that is not there; -1 with MemoryError set. */
static inline int add_new(Table *self, Shard *shard, uint64_t block, uint64_t hash, uint32_t set) {
    Entry *entry = shard_insert(shard, block, hash);
    NEED(entry);
    entry->set = set;
    sets_refer(&self->sets, set);
    self->blocks++;
    return 0;
}

/* Take a block's entry out. */
static inline void drop_entry(Table *self, Shard *shard, uint64_t block, uint64_t hash,
                              Entry *entry) {
    sets_release(&self->sets, entry->set);
    shard_remove(shard, block, hash, entry);
    self->blocks--;
}
