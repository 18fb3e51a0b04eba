/* Table: what Python sees of table.c, and of what an index does with tables. Bytes behind the last whole
 * block of a run are ignored.
 */
#include "base/shell.h"
#include "index/index.h"

static PyObject *table_new(NEW_ARGUMENTS) {
    Table *self = (Table *)type->tp_alloc(type, 0);
    if (self != NULL && (READ_NEW("Table", "", "", NULL) < 0 ||
                         (self->holdings = PyDict_New()) == NULL || sets_init(&self->sets) < 0)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

TRAVERSE(Table, table, holdings)

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

static PyObject *table_admit(Table *self, ARGUMENTS) {
    PyObject *worker, *bit;
    TRY_OR_NULL(READ_PLACED("admit", "OO", "worker bit", &worker, &bit));
    PyObject *known = PyDict_GetItemWithError(self->holdings, worker);
    if (known != NULL || PyErr_Occurred()) {
        return Py_XNewRef(known);
    }
    int64_t slot = mask_slot(bit);
    uint32_t single = slot < 0 ? NO_SET : table_single(self, (uint32_t)slot);
    if (single == NO_SET) {
        return NULL;
    }
    Holding *holding = PyObject_New(Holding, &holding_type);
    NEED_OR_NULL(holding);
    holding->bit = Py_NewRef(bit);
    holding->slot = (uint32_t)slot;
    holding->blocks = 0;
    holding->digest = 0;
    if (PyDict_SetItem(self->holdings, worker, (PyObject *)holding) < 0) {
        Py_CLEAR(holding);
    }
    return (PyObject *)holding;
}

static PyObject *table_store(Table *self, ARGUMENTS) {
    Py_buffer view;
    Holding *holding;
    PyObject *run;
    TRY_OR_NULL(READ_PLACED("store", "!O", "holding run", &holding_type, &holding, &run));
    TRY_OR_NULL(PyObject_GetBuffer(run, &view, PyBUF_SIMPLE));
    int failed = table_store_run(self, holding, view.buf, view.len / BLOCK_BYTES);
    PyBuffer_Release(&view);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *table_extend(Table *self, ARGUMENTS) {
    Py_buffer view;
    Holding *holding;
    PyObject *behind, *run;
    uint64_t parent;
    TRY_OR_NULL(READ_PLACED("extend", "!OO", "holding parent run", &holding_type, &holding, &behind,
                            &run));
    int known = read_block(behind, &parent);
    if (known < 0 || PyObject_GetBuffer(run, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    known = known && (!parent || table_held_by(self, parent, holding->slot));
    int failed = known && table_store_run(self, holding, view.buf, view.len / BLOCK_BYTES) < 0;
    PyBuffer_Release(&view);
    return failed ? NULL : PyBool_FromLong(known);
}

static PyObject *table_remove(Table *self, ARGUMENTS) {
    Py_buffer view;
    Holding *holding;
    PyObject *run;
    TRY_OR_NULL(READ_PLACED("remove", "!O", "holding run", &holding_type, &holding, &run));
    TRY_OR_NULL(PyObject_GetBuffer(run, &view, PyBUF_SIMPLE));
    PyObject *missing = PyList_New(0);
    Py_ssize_t count = view.len / BLOCK_BYTES;
    if (missing != NULL && table_remove_noting(self, holding, view.buf, count, missing) < 0) {
        Py_CLEAR(missing);
    }
    PyBuffer_Release(&view);
    return missing;
}

static PyObject *table_holds(Table *self, ARGUMENTS) {
    uint64_t block;
    PyObject *bit, *given;
    TRY_OR_NULL(READ_PLACED("holds", "OO", "bit block", &bit, &given));
    int64_t slot = mask_slot(bit);
    int known = slot < 0 ? -1 : read_block(given, &block);
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

RETURNS(Table, table_size, PyLong_FromUnsignedLongLong(self->blocks))

MEMBERS(members, FIELDS(Table, T_OBJECT_EX, READONLY, holdings))

METHODS(methods,
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
    METHOD_O("loader", table_loader))

PyTypeObject table_type = {
    GC_TYPE("Table", Table, table),
    .tp_clear = (inquiry)table_forget,
    .tp_members = members, .tp_methods = methods,
};
