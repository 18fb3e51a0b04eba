/* What an engine's only group holds, for whoever follows several: see residents.h. */
#include "residents.h"

#define BITS 24

/* Return the counts of all tiers in one number, 24 bits each. */
static PyObject *packed_references(const Residents *self, uint32_t block) {
    PyObject *packed = PyLong_FromUnsignedLong(keyed_at(&self->blocks, block)->two);
    for (int tier = 1; packed != NULL && tier < self->contents.tier_count; tier++) {
        const Tier *table = self->contents.tiers + tier;
        PyObject *count = PyLong_FromUnsignedLong(column_get(&table->references, block));
        PyObject *bits = count == NULL ? NULL : PyLong_FromLong((long)table->number * BITS);
        PyObject *shifted = bits == NULL ? NULL : PyNumber_Lshift(count, bits);
        Py_SETREF(packed, shifted == NULL ? NULL : PyNumber_Or(packed, shifted));
        Py_XDECREF(count);
        Py_XDECREF(bits);
        Py_XDECREF(shifted);
    }
    return packed;
}

static PyObject *contents_tuple(const Residents *self, const uint32_t *nodes, Py_ssize_t count) {
    PyObject *contents = PyTuple_New(count);
    for (Py_ssize_t at = 0; contents != NULL && at < count; at++) {
        PyObject *hash = PyLong_FromUnsignedLongLong(contents_hash(&self->contents, nodes[at]));
        if (hash == NULL) {
            Py_CLEAR(contents);
        } else {
            PyTuple_SET_ITEM(contents, at, hash);
        }
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

static int append_blocks(const Residents *self, PyObject *blocks) {
    for (int number = 0; number < KEYED_PARTS; number++) {
        const KeyedPart *part = self->blocks.parts + number;
        for (uint32_t at = 0; at < part->room; at++) {
            if (part->places[at] == UINT32_MAX) {
                continue;
            }
            PyObject *block = block_tuple(self, part->places[at] & NO_RECORD);
            int failed = block == NULL || PyList_Append(blocks, block) < 0;
            Py_XDECREF(block);
            if (failed) {
                return -1;
            }
        }
    }
    return 0;
}

PyObject *residents_hand_over(const Residents *self) {
    const ResidentCounts *counts = &self->counts;
    PyObject *blocks = PyList_New(0);
    if (blocks == NULL || append_blocks(self, blocks) < 0) {
        Py_XDECREF(blocks);
        return NULL;
    }
    return Py_BuildValue("LLN(LLLLLLL)", self->has_group ? self->group : 0LL,
                         self->block_size < 0 ? 0LL : self->block_size, blocks, counts->orphans,
                         counts->partial_blocks, counts->ignored_groups, counts->placeholders,
                         counts->unknown_removals, counts->mismatched_blocks, counts->crowded);
}
