/* Hashed: the sequence hashes of one prompt, as core.blocks.hashing.Hashes has them. */
#include "base/shell.h"
#include "prompts/hashed.h"

static PyObject *array_type;

int hashed_ready(void) {
    PyObject *module = PyImport_ImportModule("array");
    array_type = module == NULL ? NULL : PyObject_GetAttrString(module, "array");
    Py_XDECREF(module);
    return array_type == NULL ? -1 : 0;
}

Hashed *hashed_new(Py_ssize_t count) { return PyObject_NewVar(Hashed, &hashed_type, count); }

static PyObject *hashed_array(Hashed *self) {
    PyObject *packed = PyBytes_FromStringAndSize(
        (const char *)self->at, Py_SIZE(self) * (Py_ssize_t)sizeof *self->at);
    PyObject *made =
        packed == NULL ? NULL : PyObject_CallFunction(array_type, "sO", "Q", packed);
    Py_XDECREF(packed);
    return made;
}

static PyObject *hashed_upto(Hashed *self, PyObject *count) {
    PyLong_AsLongLong(count);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) {
        return NULL;
    }
    PyErr_Clear();
    return hashed_array(self);
}

static Py_ssize_t hashed_length(Hashed *self) { return Py_SIZE(self); }

GETTER(Hashed, hashed_blocks, PyLong_FromSsize_t(Py_SIZE(self)))

static void hashed_dealloc(Hashed *self) { PyObject_Free(self); }

METHODS(methods, METHOD_O("upto", hashed_upto))

GETTERS(getters, {"blocks", (getter)hashed_blocks, NULL, "The number of full blocks.", NULL})

static PySequenceMethods sequence = {.sq_length = (lenfunc)hashed_length};

PyTypeObject hashed_type = {
    SLOTS("Hashed", offsetof(Hashed, at), Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_itemsize = sizeof(uint64_t),
    .tp_dealloc = (destructor)hashed_dealloc,
    .tp_as_sequence = &sequence,
    .tp_getset = getters, .tp_methods = methods,
};
