/* Holding: a worker's bit, and how many blocks it holds in one table. */
#include "base/shell.h"
#include "table/table.h"

Holding *holding_make(uint32_t slot) {
    PyObject *one = PyLong_FromLong(1), *shift = PyLong_FromUnsignedLong(slot);
    PyObject *bit = one == NULL || shift == NULL ? NULL : PyNumber_Lshift(one, shift);
    XDECREF_ALL(one, shift);
    Holding *self = bit == NULL ? NULL : PyObject_New(Holding, &holding_type);
    if (self == NULL) {
        Py_XDECREF(bit);
        return NULL;
    }
    self->bit = bit;
    self->slot = slot;
    self->blocks = 0;
    self->digest = 0;
    return self;
}

DEALLOC(Holding, holding, bit)

GETTER(Holding, holding_bit, Py_NewRef(self->bit))

GETTER(Holding, holding_blocks, PyLong_FromLongLong(self->blocks))

GETTER(Holding, holding_digest, PyLong_FromUnsignedLongLong(self->digest))

static int refuse_no_int(PyObject *value) {
    REFUSE(value == NULL || !PyLong_Check(value), PyExc_TypeError,
           "what a worker holds is counted in ints");
    return 0;
}

static int holding_set_blocks(Holding *self, PyObject *value, void *Py_UNUSED(closure)) {
    TRY(refuse_no_int(value));
    long long blocks = PyLong_AsLongLong(value);
    TRY_IF(blocks == -1, no_error());
    self->blocks = blocks;
    return 0;
}

static int holding_set_digest(Holding *self, PyObject *value, void *Py_UNUSED(closure)) {
    TRY(refuse_no_int(value));
    self->digest = PyLong_AsUnsignedLongLongMask(value);
    return 0;
}

GETTERS(getters,
    {"bit", (getter)holding_bit, NULL, "The mask with the worker's bit alone.", NULL},
    {"blocks", (getter)holding_blocks, (setter)holding_set_blocks, "Blocks held.", NULL},
    {"digest", (getter)holding_digest, (setter)holding_set_digest,
     "Sum of their hashes mod 2^64.", NULL})

PyTypeObject holding_type = {
    INNER_TYPE("Holding", Holding, holding),
    .tp_getset = getters,
};
