/* Frozen as Python sees it: what frozen.c keeps, read whole; part.c makes the columns of a snapshot. */
#include "base/shell.h"
#include "table/table.h"

PyObject *table_freeze(Table *self, PyObject *Py_UNUSED(nothing)) {
    Frozen *view = PyObject_New(Frozen, &frozen_type);
    NEED_OR_NULL(view);
    view->table = (Table *)Py_NewRef(self);
    view->open = 1;
    view->next = self->frozen;
    memset(view->pending, 1, sizeof view->pending);
    memset(view->kept, 0, sizeof view->kept);
    for (uint32_t number = 0; number < SHARDS; number++) {
        view->ends[number] = self->shards[number].next;
    }
    view->number = ++self->freezes;
    self->frozen = view;
    return (PyObject *)view;
}

static PyObject *frozen_end(Frozen *self, PyObject *Py_UNUSED(nothing)) {
    frozen_close(self);
    Py_RETURN_NONE;
}

static void frozen_dealloc(Frozen *self) {
    frozen_free(self);
    PyObject_Free(self);
}

/* Put key -> mask of a shard into a new dict; -1 with MemoryError set. */
static int fill(PyObject *held, Table *table, const Reading *reading) {
    for (uint32_t i = 0; i < reading->count; i++) {
        const Entry *entry = reading->entries + i;
        TRY(dict_add(held, PyLong_FromUnsignedLongLong(entry->key >> 8),
                     Py_XNewRef(sets_mask(&table->sets, entry->set))));
    }
    return 0;
}

static PyObject *frozen_take(Frozen *self, PyObject *object) {
    uint32_t number;
    PyObject *held = PyDict_New(); /* first: making it may run the garbage collector */
    Reading reading = {NULL, 0};
    if (held != NULL && shard_number(object, &number) == 0) {
        reading = frozen_read(self, number);
    }
    if (reading.entries == NULL || fill(held, self->table, &reading) < 0) {
        Py_CLEAR(held);
    } else {
        frozen_done(self, number);
    }
    PyMem_Free(reading.entries);
    return held;
}

static PyObject *frozen_blocks(Frozen *self, PyObject *object) {
    uint32_t number;
    TRY_OR_NULL(shard_number(object, &number));
    return PyLong_FromUnsignedLongLong((uint64_t)self->table->shards[number].used +
                                       self->kept[number].count);
}

METHODS(methods,
    METHOD_O("take", frozen_take),
    METHOD_FASTCALL("columns", frozen_columns),
    METHOD_FASTCALL("part", frozen_part),
    METHOD_O("blocks", frozen_blocks),
    METHOD_NOARGS("close", frozen_end))

PyTypeObject frozen_type = {
    INNER_TYPE("Frozen", Frozen, frozen),
    .tp_methods = methods,
};
