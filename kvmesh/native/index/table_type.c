/* Table: what Python sees of table.c, and of what an index does with tables. Bytes behind the last whole
 * block of a run are ignored.
 */
#include "base/shell.h"
#include "index/index.h"

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) || (kwargs != NULL && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "Table takes no arguments");
        return NULL;
    }
    Table *self = (Table *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->holdings = PyDict_New();
    if (self->holdings == NULL || sets_init(&self->sets) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int table_traverse(Table *self, visitproc visit, void *arg) {
    Py_VISIT(self->holdings);
    return 0;
}

static int table_forget(Table *self) {
    if (self->holdings != NULL) {
        PyDict_Clear(self->holdings);
    }
    return 0;
}

static void table_dealloc(Table *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->holdings);
    for (int number = 0; number < SHARDS; number++) {
        shard_free(self->shards + number);
    }
    PyMem_Free(self->singles);
    sets_clear(&self->sets);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *table_admit(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "admit takes 2 arguments, not %zd", nargs);
    }
    PyObject *known = PyDict_GetItemWithError(self->holdings, args[0]);
    if (known != NULL || PyErr_Occurred()) {
        return Py_XNewRef(known);
    }
    int64_t slot = mask_slot(args[1]);
    uint32_t single = slot < 0 ? NO_SET : table_single(self, (uint32_t)slot);
    if (single == NO_SET) {
        return NULL;
    }
    Holding *holding = PyObject_New(Holding, &holding_type);
    if (holding == NULL) {
        return NULL;
    }
    holding->bit = Py_NewRef(args[1]);
    holding->slot = (uint32_t)slot;
    holding->blocks = 0;
    holding->digest = 0;
    if (PyDict_SetItem(self->holdings, args[0], (PyObject *)holding) < 0) {
        Py_CLEAR(holding);
    }
    return (PyObject *)holding;
}

/* Check that there are a holding and a run, and open the run; -1 with TypeError set. */
static int open_run(PyObject *const *args, Py_ssize_t run_at, Py_buffer *view) {
    if (!Py_IS_TYPE(args[0], &holding_type)) {
        PyErr_Format(PyExc_TypeError, "a Holding is needed, not %.100s", Py_TYPE(args[0])->tp_name);
        return -1;
    }
    return PyObject_GetBuffer(args[run_at], view, PyBUF_SIMPLE);
}

static PyObject *table_store(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view;
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "store takes 2 arguments, not %zd", nargs);
    }
    if (open_run(args, 1, &view) < 0) {
        return NULL;
    }
    int failed = table_store_run(self, (Holding *)args[0], view.buf, view.len / BLOCK_BYTES);
    PyBuffer_Release(&view);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *table_extend(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view;
    uint64_t parent;
    if (nargs != 3) {
        return PyErr_Format(PyExc_TypeError, "extend takes 3 arguments, not %zd", nargs);
    }
    int known = read_block(args[1], &parent);
    if (known < 0 || open_run(args, 2, &view) < 0) {
        return NULL;
    }
    Holding *holding = (Holding *)args[0];
    known = known && (!parent || table_held_by(self, parent, holding->slot));
    int failed = known && table_store_run(self, holding, view.buf, view.len / BLOCK_BYTES) < 0;
    PyBuffer_Release(&view);
    return failed ? NULL : PyBool_FromLong(known);
}

static PyObject *table_remove(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view;
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "remove takes 2 arguments, not %zd", nargs);
    }
    if (open_run(args, 1, &view) < 0) {
        return NULL;
    }
    PyObject *missing = PyList_New(0);
    Py_ssize_t count = view.len / BLOCK_BYTES;
    if (missing != NULL && table_remove_noting(self, (Holding *)args[0], view.buf, count, missing) < 0) {
        Py_CLEAR(missing);
    }
    PyBuffer_Release(&view);
    return missing;
}

static PyObject *table_holds(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    uint64_t block;
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "holds takes 2 arguments, not %zd", nargs);
    }
    int64_t slot = mask_slot(args[0]);
    int known = slot < 0 ? -1 : read_block(args[1], &block);
    return known < 0 ? NULL : PyBool_FromLong(known && table_held_by(self, block, (uint32_t)slot));
}

static PyObject *table_mask(Table *self, PyObject *object) {
    uint64_t block;
    int known = read_block(object, &block);
    if (known <= 0) {
        return known < 0 ? NULL : PyLong_FromLong(0);
    }
    const Entry *entry = shard_find(self->shards + (block & 255), block, mixed(block));
    return entry == NULL ? PyLong_FromLong(0) : Py_XNewRef(sets_mask(&self->sets, entry->set));
}

static PyObject *table_size(Table *self, PyObject *Py_UNUSED(nothing)) {
    return PyLong_FromUnsignedLongLong(self->blocks);
}

static PyMemberDef members[] = {
    {"holdings", T_OBJECT_EX, offsetof(Table, holdings), READONLY, "worker -> Holding"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    METHOD_FASTCALL("admit", table_admit),
    METHOD_FASTCALL("store", table_store),
    METHOD_FASTCALL("extend", table_extend),
    METHOD_FASTCALL("remove", table_remove),
    METHOD_FASTCALL("fold", table_fold),
    METHOD_FASTCALL("fold_ends", table_fold_ends),
    METHOD_FASTCALL("holds", table_holds),
    METHOD_O("mask", table_mask),
    METHOD_FASTCALL("move", table_move),
    METHOD_NOARGS("size", table_size),
    METHOD_FASTCALL("clear_bits", table_clear_bits),
    METHOD_NOARGS("freeze", table_freeze),
    METHOD_FASTCALL("find_drops", table_find_drops),
    METHOD_FASTCALL("view", table_view),
    METHOD_NOARGS("pieces", table_pieces),
    METHOD_O("loader", table_loader),
    {NULL, NULL, 0, NULL},
};

PyTypeObject table_type = {
    GC_TYPE("Table", Table, table),
    .tp_clear = (inquiry)table_forget,
    .tp_members = members,
    .tp_methods = methods,
};
