/* Frozen as Python sees it: what frozen.c keeps, read whole; part.c makes the columns of a snapshot. */
#include "table/table.h"

PyObject *table_freeze(Table *self, PyObject *nothing) {
    (void)nothing;
    Frozen *view = PyObject_New(Frozen, &frozen_type);
    if (view == NULL) {
        return NULL;
    }
    view->table = (Table *)Py_NewRef(self);
    view->open = 1;
    view->next = self->frozen;
    memset(view->pending, 1, sizeof view->pending);
    memset(view->kept, 0, sizeof view->kept);
    view->number = ++self->freezes;
    self->frozen = view;
    return (PyObject *)view;
}

static PyObject *frozen_end(Frozen *self, PyObject *nothing) {
    (void)nothing;
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
        PyObject *mask = sets_mask(&table->sets, entry->set);
        PyObject *key = mask == NULL ? NULL : PyLong_FromUnsignedLongLong(entry->key >> 8);
        int failed = key == NULL || PyDict_SetItem(held, key, mask) < 0;
        Py_XDECREF(key);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(take_doc, "take(number) -> dict[int, int]\n\n"
"Return key -> mask of one shard, once: later it may be as it is now. 0.1 us a block.");

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
    if (shard_number(object, &number) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong((uint64_t)self->table->shards[number].used +
                                       self->kept[number].count);
}

static PyMethodDef methods[] = {
    {"take", (PyCFunction)frozen_take, METH_O, take_doc},
    {"columns", (PyCFunction)(void (*)(void))frozen_columns, METH_FASTCALL,
     "columns(number, live, numbers, older=None) -> tuple[int, int, bytes]\n\n"
     "Return one shard, once, as a snapshot has it, together with that of an older table: how many\n"
     "blocks, how many bytes the number of a set takes, and the columns. `numbers` maps masks to numbers\n"
     "and grows; `live` None: every bit counts. 20 ns a block."},
    {"part", (PyCFunction)(void (*)(void))frozen_part, METH_FASTCALL,
     "part(number, live, numbers, older=None) -> Part\n\n"
     "Return what makes the same columns in slices."},
    {"blocks", (PyCFunction)frozen_blocks, METH_O,
     "blocks(number) -> int\n\nReturn how many blocks of one shard there are to be read, at most."},
    {"close", (PyCFunction)frozen_end, METH_NOARGS, "close()\n\nCopy no more; safe to call twice."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject frozen_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Frozen",
    .tp_doc = "A table as it was.",
    .tp_basicsize = sizeof(Frozen),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)frozen_dealloc,
    .tp_methods = methods,
};
