/* Table: what Python sees of table.c, and of what an index does with tables. Bytes behind the last whole
 * block of a run are ignored.
 */
#include "index/index.h"

#include <structmember.h>

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

PyDoc_STRVAR(admit_doc, "admit(worker, bit) -> Holding\n\n"
"Return the holding of `worker`, made when there is none.");

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

PyDoc_STRVAR(store_doc, "store(holding, run)\n\n"
"Add packed blocks; those already held change nothing. 50 ns a block.");

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

PyDoc_STRVAR(extend_doc, "extend(holding, parent, run) -> bool\n\n"
"Add blocks behind `parent` (0: the root), as `store`; False, and no change, when it is not held.");

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

PyDoc_STRVAR(remove_doc, "remove(holding, run) -> list[int]\n\n"
"Take packed blocks away; return those that were not held. 50 ns a block.");

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

PyDoc_STRVAR(fold_ends_doc,
"fold_ends(holding, data, epoch, first_seq, room, (table, holding)) -> tuple | None\n\n"
"Do the same where ends are ordinary too; return (tuple, ends told, taken back that were none).");

PyDoc_STRVAR(fold_doc, "fold(holding, data, epoch, first_seq, room) -> tuple | None\n\n"
"Apply an ordinary journal message, see kvmesh.core.index.block_table.");

PyDoc_STRVAR(holds_doc, "holds(bit, block) -> bool\n\n"
"Return whether the worker with that bit holds `block`.");

static PyObject *table_holds(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    uint64_t block;
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "holds takes 2 arguments, not %zd", nargs);
    }
    int64_t slot = mask_slot(args[0]);
    int known = slot < 0 ? -1 : read_block(args[1], &block);
    return known < 0 ? NULL : PyBool_FromLong(known && table_held_by(self, block, (uint32_t)slot));
}

PyDoc_STRVAR(mask_doc, "mask(block) -> int\n\nReturn the mask of those who hold a block, 0: nobody.");

static PyObject *table_mask(Table *self, PyObject *object) {
    uint64_t block;
    int known = read_block(object, &block);
    if (known <= 0) {
        return known < 0 ? NULL : PyLong_FromLong(0);
    }
    const Entry *entry = shard_find(self->shards + (block & 255), block, mixed(block));
    return entry == NULL ? PyLong_FromLong(0) : Py_XNewRef(sets_mask(&self->sets, entry->set));
}

static PyObject *table_size(Table *self, PyObject *nothing) {
    (void)nothing;
    return PyLong_FromUnsignedLongLong(self->blocks);
}

PyDoc_STRVAR(move_doc, "move(run, mask, target)\n\n"
"Move blocks, which nobody alive outside `mask` holds here, into another Table.");

PyDoc_STRVAR(clear_bits_doc, "clear_bits(number, dead, place) -> tuple[int, int]\n\n"
"Clear the bits of `dead` in a slice of one shard, the first one at place 0; return about how many blocks\n"
"it had, and the place of the next one, 0 behind the last. 0.7 ms.");

PyDoc_STRVAR(pieces_doc, "pieces() -> list[object]\n\n"
"Forget every block; return what holds the memory, one thing a shard, to be let go piece by piece.\n"
"While a view is open nothing is forgotten, and the things hold nothing.");

static PyMemberDef members[] = {
    {"holdings", T_OBJECT_EX, offsetof(Table, holdings), READONLY, "worker -> Holding"},
    {NULL, 0, 0, 0, NULL},
};

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"admit", FAST(table_admit), METH_FASTCALL, admit_doc},
    {"store", FAST(table_store), METH_FASTCALL, store_doc},
    {"extend", FAST(table_extend), METH_FASTCALL, extend_doc},
    {"remove", FAST(table_remove), METH_FASTCALL, remove_doc},
    {"fold", FAST(table_fold), METH_FASTCALL, fold_doc},
    {"fold_ends", FAST(table_fold_ends), METH_FASTCALL, fold_ends_doc},
    {"holds", FAST(table_holds), METH_FASTCALL, holds_doc},
    {"mask", (PyCFunction)table_mask, METH_O, mask_doc},
    {"move", FAST(table_move), METH_FASTCALL, move_doc},
    {"size", (PyCFunction)table_size, METH_NOARGS, "size() -> int\n\nReturn how many blocks are held."},
    {"clear_bits", FAST(table_clear_bits), METH_FASTCALL, clear_bits_doc},
    {"freeze", (PyCFunction)table_freeze, METH_NOARGS,
     "freeze() -> Frozen\n\nReturn this table as it is now. O(shards)."},
    {"find_drops", FAST(table_find_drops), METH_FASTCALL,
     "find_drops(hashes, live, older=None) -> list[tuple[int, int]]\n\n"
     "Return where along a prompt workers drop out, see kvmesh.core.index.search."},
    {"view", FAST(table_view), METH_FASTCALL,
     "view(older, names, live) -> View\n\n"
     "Return what a search needs of this table and an older one or None. O(workers)."},
    {"pieces", (PyCFunction)table_pieces, METH_NOARGS, pieces_doc},
    {"loader", (PyCFunction)table_loader, METH_O,
     "loader(masks) -> Loader\n\nReturn what fills this table from the parts of a snapshot."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject table_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Table",
    .tp_doc = "Block hash -> set of the workers that hold it, for one tier.",
    .tp_basicsize = sizeof(Table),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = table_new,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_traverse = (traverseproc)table_traverse,
    .tp_clear = (inquiry)table_forget,
    .tp_members = members,
    .tp_methods = methods,
};
