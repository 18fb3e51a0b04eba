/* View: what a search needs of an index, looked up once. It never changes but for what the tables
 * hold: whoever assigns or releases a slot, or takes another table, makes a new one. */
#pragma once

#include "index/cut.h"

typedef struct {
    PyObject_HEAD
    Table *young, *old; /* old: NULL for none */
    PyObject *names;    /* tuple: slot -> worker */
    uint64_t *live;     /* the slots that count, all below the length of `names` */
    uint32_t live_words;
    PyObject *holdings; /* tuple: slot -> (Holding | None) of `young`, as long as `names` */
    PyObject *aged;     /* the same of `old`, or NULL */
    Ends ends;          /* of the workers that are grouped */
} View;

extern PyTypeObject view_type;

/* Return the worker of a slot below the length of `names`, borrowed. */
static inline PyObject *view_name(const View *self, uint32_t slot) {
    return PyTuple_GET_ITEM(self->names, slot);
}

static inline long long view_held(PyObject *holdings, uint32_t slot) {
    PyObject *one = holdings == NULL ? Py_None : PyTuple_GET_ITEM(holdings, slot);
    return one == Py_None ? 0 : ((Holding *)one)->blocks;
}

/* Return how many blocks the worker of a slot holds in both tables. */
static inline long long view_blocks(const View *self, uint32_t slot) {
    return view_held(self->holdings, slot) + view_held(self->aged, slot);
}

/* Return a list of (depth, workers) of drops, lowest slot first, by the names of slots; NULL with an error
 * set. Names may move while lists are made: `names` says where they are.
 */
PyObject *drops_groups(const Drops *found, PyObject ***names);

/* Find the drops of known hashes: `table_search` of this view. -1 with MemoryError set. */
static inline int view_search(const View *self, const uint64_t *hashes, Py_ssize_t count,
                              Drops *found) {
    return table_search(self->young, self->old, hashes, count, self->live, self->live_words, found);
}
