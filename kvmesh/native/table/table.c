/* Block hash -> set of the workers that hold it, for one tier; see table.h.
 *
 * Runs are packed little-endian u64s. No call is longer than O(its run). What an allocation failed for is
 * left as it was, up to the block it failed at, and counts stay right.
 */
#include "base/arrays.h"
#include "table/table.h"

#define AHEAD 16

int read_block(PyObject *object, uint64_t *block) {
    REFUSE(!PyLong_Check(object), PyExc_TypeError, "a block is an int, not %.100s",
           Py_TYPE(object)->tp_name);
    *block = PyLong_AsUnsignedLongLong(object);
    if (*block == UINT64_MAX && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    return 1;
}

uint32_t table_single(Table *self, uint32_t slot) {
    if (slot < self->single_count && self->singles[slot] != NO_SET) {
        return self->singles[slot];
    }
    if (slot >= self->single_count) {
        uint32_t count = slot + 64;
        if (RESIZE(self->singles, count) < 0) {
            return NO_SET;
        }
        memset(self->singles + self->single_count, 0,
               (count - self->single_count) * sizeof *self->singles);
        self->single_count = count;
    }
    uint32_t size = slot / 64 + 1;
    uint64_t *words = sets_scratch(&self->sets, size);
    if (words == NULL) {
        return NO_SET;
    }
    memset(words, 0, size * sizeof *words);
    words[slot / 64] = 1ULL << (slot % 64);
    uint32_t number = sets_intern(&self->sets, words, size);
    if (number != NO_SET) {
        sets_refer(&self->sets, number);
        self->singles[slot] = number;
    }
    return number;
}

/* Hashes of the next blocks of a run, whose entries are being fetched. */
typedef struct {
    uint64_t hashes[AHEAD];
} Ahead;

static inline void fetch_ahead(const Table *self, const uint8_t *run, Py_ssize_t at,
                               Py_ssize_t count, Ahead *ahead) {
    if (at < count) {
        uint64_t hash = mixed(run_block(run, at));
        ahead->hashes[at % AHEAD] = hash;
        shard_prefetch_change(self->shards + run[at * BLOCK_BYTES], hash);
    }
}

static inline void begin_ahead(const Table *self, const uint8_t *run, Py_ssize_t count, Ahead *ahead) {
    for (Py_ssize_t i = 0; i < AHEAD; i++) {
        fetch_ahead(self, run, i, count, ahead);
    }
}

/* Return the hash of a block, and have that of a later one fetched. */
static inline uint64_t next_hash(const Table *self, const uint8_t *run, Py_ssize_t at,
                                 Py_ssize_t count, Ahead *ahead) {
    uint64_t hash = ahead->hashes[at % AHEAD];
    fetch_ahead(self, run, at + AHEAD, count, ahead);
    return hash;
}

int table_store_run(Table *self, Holding *holding, const uint8_t *run, Py_ssize_t count) {
    uint32_t single = table_single(self, holding->slot), before = NO_SET, after = NO_SET;
    if (single == NO_SET) {
        return -1;
    }
    self->changes++;
    Ahead ahead;
    begin_ahead(self, run, count, &ahead);
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t block = run_block(run, i), hash = next_hash(self, run, i, count, &ahead);
        Shard *shard = self->shards + (block & 255);
        Entry *entry = shard_find(shard, block, hash);
        if (entry == NULL) {
            TRY(add_new(self, shard, block, hash, single));
        } else {
            if (sets_has(&self->sets, entry->set, holding->slot)) {
                continue;
            }
            TRY(table_keep_entry(self, block & 255, hash, entry));
            if (entry->set != before) { /* sets change alike all along a run */
                before = entry->set;
                after = sets_flipped(&self->sets, before, holding->slot);
                if (after == NO_SET) {
                    return -1;
                }
            }
            rename_entry(self, entry, after);
        }
        holding->blocks++;
        holding->digest += block;
    }
    return 0;
}

int table_held_by(const Table *self, uint64_t block, uint32_t slot) {
    const Entry *entry = shard_find(self->shards + (block & 255), block, mixed(block));
    return entry != NULL && sets_has(&self->sets, entry->set, slot);
}

static int note_missing(PyObject *missing, uint64_t block) {
    if (missing == NULL) {
        return 0;
    }
    int failed = list_add(missing, PyLong_FromUnsignedLongLong(block)) < 0;
    return failed ? -1 : 0;
}

int table_remove_noting(Table *self, Holding *holding, const uint8_t *run, Py_ssize_t count,
                        PyObject *missing) {
    uint32_t before = NO_SET, after = NO_SET, single = table_single(self, holding->slot);
    if (single == NO_SET) {
        return -1;
    }
    self->changes++;
    Ahead ahead;
    begin_ahead(self, run, count, &ahead);
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t block = run_block(run, i), hash = next_hash(self, run, i, count, &ahead);
        Shard *shard = self->shards + (block & 255);
        Entry *entry = shard_find(shard, block, hash);
        uint32_t set = entry == NULL ? NO_SET : entry->set;
        if (set == NO_SET || !sets_has(&self->sets, set, holding->slot)) {
            TRY(note_missing(missing, block));
            continue;
        }
        TRY(table_keep_entry(self, block & 255, hash, entry));
        if (set == single) {
            drop_entry(self, shard, block, hash, entry);
        } else {
            if (set != before) {
                before = set;
                after = sets_flipped(&self->sets, before, holding->slot);
                if (after == NO_SET) {
                    return -1;
                }
            }
            rename_entry(self, entry, after);
        }
        holding->blocks--;
        holding->digest -= block;
    }
    return 0;
}

int table_put(Table *self, Holding *holding, const uint64_t *blocks, Py_ssize_t count) {
    return table_store_run(self, holding, (const uint8_t *)blocks, count);
}

int table_take(Table *self, Holding *holding, const uint64_t *blocks, Py_ssize_t count) {
    return table_remove_run(self, holding, (const uint8_t *)blocks, count);
}

int table_remove_run(Table *self, Holding *holding, const uint8_t *run, Py_ssize_t count) {
    return table_remove_noting(self, holding, run, count, NULL);
}
