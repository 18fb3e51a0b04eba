/* What an engine's only group holds, for whoever follows several, or for a later process: see
 * residents.h. */
#include "base/arrays.h"
#include "engines/residents.h"

#define BITS 24
#define HEAD_BYTES 27
#define COUNT_BYTES 4

/* Return the counts of all tiers in one number, 24 bits each. */
static PyObject *packed_references(const Residents *self, uint32_t block) {
    PyObject *packed = PyLong_FromUnsignedLong(keyed_at(&self->blocks, block)->two);
    for (int tier = 1; packed != NULL && tier < self->contents.tier_count; tier++) {
        const Tier *table = self->contents.tiers + tier;
        PyObject *count = PyLong_FromUnsignedLong(column_get(&table->references, block));
        PyObject *bits = count == NULL ? NULL : PyLong_FromLong((long)table->number * BITS);
        PyObject *shifted = bits == NULL ? NULL : PyNumber_Lshift(count, bits);
        Py_SETREF(packed, shifted == NULL ? NULL : PyNumber_Or(packed, shifted));
        XDECREF_ALL(count, bits, shifted);
    }
    return packed;
}

static PyObject *contents_tuple(const Residents *self, const uint32_t *nodes, Py_ssize_t count) {
    PyObject *contents = PyTuple_New(count);
    for (Py_ssize_t at = 0; contents != NULL && at < count; at++) {
        PyObject *hash = PyLong_FromUnsignedLongLong(contents_hash(&self->contents, nodes[at]));
        set_made(&contents, at, hash);
    }
    return contents;
}

static PyObject *block_tuple(const Residents *self, uint32_t block) {
    Py_ssize_t count = 1;
    uint32_t span = column_get(&self->spans, block);
    const KeyedRecord *record = keyed_at(&self->blocks, block);
    const uint32_t *nodes = &record->one;
    if (span) {
        nodes = self->span_items[span - 1].items;
        count = self->span_items[span - 1].count;
    }
    const Contents *contents = &self->contents;
    unsigned long long root = contents_root(contents, nodes[count - 1]);
    unsigned long long parent = contents_hash(contents, keyed_at(&contents->nodes, nodes[0])->one);
    return Py_BuildValue("KKNKN", (unsigned long long)record->key, parent,
                         contents_tuple(self, nodes, count), root, packed_references(self, block));
}

/* Call `visit` for each hash's first block; -1 as soon as it returns that. */
static int each_block(const Residents *self, int (*visit)(const Residents *, uint32_t, void *), void *to) {
    for (int number = 0; number < KEYED_PARTS; number++) {
        const KeyedPart *part = self->blocks.parts + number;
        for (uint32_t at = 0; at < part->room; at++) {
            TRY_IF(part->places[at] != UINT32_MAX, visit(self, part->places[at] & NO_RECORD, to));
        }
    }
    return 0;
}

static int append_block(const Residents *self, uint32_t block, void *blocks) {
    int failed = list_add(blocks, block_tuple(self, block)) < 0;
    return failed ? -1 : 0;
}

PyObject *residents_hand_over(const Residents *self) {
    const ResidentCounts *counts = &self->counts;
    PyObject *blocks = PyList_New(0);
    if (blocks == NULL || each_block(self, append_block, blocks) < 0) {
        Py_XDECREF(blocks);
        return NULL;
    }
    return Py_BuildValue("LLN(LLLLLLL)", self->has_group ? self->group : 0LL,
                         self->block_size < 0 ? 0LL : self->block_size, blocks, counts->orphans,
                         counts->partial_blocks, counts->ignored_groups, counts->placeholders,
                         counts->unknown_removals, counts->mismatched_blocks, counts->crowded);
}

/* A block as it is kept, all little-endian: hash, parent and root as u64, a u16 of how many contents
 * and a u8 of which tiers stored it, the contents as u64, and for each such tier a u32 of how often. */
typedef struct {
    uint8_t *bytes;
    size_t used, room;
} Writer;

static void put(Writer *self, uint64_t number, int size) {
    for (int byte = 0; byte < size; byte++) {
        self->bytes[self->used++] = (uint8_t)(number >> 8 * byte);
    }
}

static int make_room(Writer *self, size_t bytes) {
    if (self->room - self->used >= bytes) {
        return 0;
    }
    size_t room = 2 * self->room + bytes;
    TRY(RAW_RESIZE(self->bytes, room));
    self->room = room;
    return 0;
}

static int write_one(const Residents *self, uint32_t block, Writer *to) {
    const Contents *contents = &self->contents;
    const KeyedRecord *record = keyed_at(&self->blocks, block);
    uint32_t span = column_get(&self->spans, block), counts[MOST_TIERS];
    const uint32_t *nodes = span ? self->span_items[span - 1].items : &record->one;
    Py_ssize_t count = span ? self->span_items[span - 1].count : 1;
    int tiers = 0;
    for (int tier = 0; tier < contents->tier_count; tier++) {
        counts[tier] = tier ? column_get(&contents->tiers[tier].references, block) : record->two;
        tiers |= (counts[tier] > 0) << tier;
    }
    TRY(make_room(to, HEAD_BYTES + 8 * (size_t)count + sizeof counts));
    put(to, record->key, 8);
    put(to, contents_hash(contents, keyed_at(&contents->nodes, nodes[0])->one), 8);
    put(to, contents_root(contents, nodes[count - 1]), 8);
    put(to, (uint64_t)count, 2);
    put(to, (uint64_t)tiers, 1);
    for (Py_ssize_t at = 0; at < count; at++) {
        put(to, contents_hash(contents, nodes[at]), 8);
    }
    for (int tier = 0; tier < contents->tier_count; tier++) {
        if (counts[tier]) {
            put(to, counts[tier], COUNT_BYTES);
        }
    }
    return 0;
}

/* Of several contents of one hash the oldest is written first. */
static int write_block(const Residents *self, uint32_t block, void *to) {
    for (; block != NO_RECORD; block = column_get(&self->twins, block)) {
        TRY(write_one(self, block, to));
    }
    return 0;
}

static PyObject *tier_numbers(const Contents *self) {
    PyObject *numbers = PyTuple_New(self->tier_count);
    for (int tier = 0; numbers != NULL && tier < self->tier_count; tier++) {
        PyObject *number = PyLong_FromLong(self->tiers[tier].number);
        set_made(&numbers, tier, number);
    }
    return numbers;
}

PyObject *residents_save(const Residents *self) {
    Writer blocks = {0};
    PyObject *saved = NULL;
    if (each_block(self, write_block, &blocks) == 0) {
        saved = Py_BuildValue("LLNy#", self->has_group ? self->group : -1LL,
                              self->block_size < 0 ? 0LL : self->block_size, tier_numbers(&self->contents),
                              blocks.bytes ? (const char *)blocks.bytes : "", (Py_ssize_t)blocks.used);
    }
    PyMem_RawFree(blocks.bytes);
    return saved;
}

static uint64_t take_number(const uint8_t **at, int size) {
    uint64_t number = 0;
    for (int byte = 0; byte < size; byte++) {
        number |= (uint64_t)*(*at)++ << 8 * byte;
    }
    return number;
}

/* Take one block; 1, 0 for bytes that are none, or that there is no room for, -1 with MemoryError. */
static int load_block(Residents *self, const uint8_t **at, const uint8_t *end) {
    if (end - *at < HEAD_BYTES) {
        return 0;
    }
    uint64_t hash = take_number(at, 8), parent = take_number(at, 8), root = take_number(at, 8);
    Py_ssize_t count = (Py_ssize_t)take_number(at, 2);
    unsigned stored = (unsigned)take_number(at, 1);
    uint32_t counts[MOST_TIERS] = {0};
    Py_ssize_t bytes = 8 * count;
    for (int tier = 0; tier < MOST_TIERS; tier++) {
        bytes += stored >> tier & 1 ? COUNT_BYTES : 0;
    }
    if (!count || !stored || stored >> self->contents.tier_count || end - *at < bytes) {
        return 0;
    }
    self->hashes.count = 0;
    TRY(blocks_reserve(&self->hashes, count));
    for (Py_ssize_t one = 0; one < count; one++) {
        self->hashes.items[one] = take_number(at, 8);
    }
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        counts[tier] = stored >> tier & 1 ? (uint32_t)take_number(at, COUNT_BYTES) : 0;
        if ((stored >> tier & 1 && !counts[tier]) || counts[tier] > self->most_references) {
            return 0;
        }
    }
    return residents_hold(self, hash, &(Kept){self->hashes.items, count, parent, root, counts});
}

int residents_load(Residents *self, const uint8_t *at, Py_ssize_t size) {
    const uint8_t *end = at + size;
    while (at < end) {
        int loaded = load_block(self, &at, end);
        if (loaded <= 0) {
            return loaded;
        }
    }
    return 1;
}
