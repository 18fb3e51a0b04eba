/* Numbers in a row: see arrays.h. */
#include "base/arrays.h"

#include <string.h>

int array_resize(void *place, size_t count, size_t size, void *(*resize)(void *, size_t)) {
    void *array;
    memcpy(&array, place, sizeof array);
    void *resized = count > PY_SSIZE_T_MAX / size ? NULL : resize(array, count * size);
    NEED_MEMORY(resized);
    memcpy(place, &resized, sizeof resized);
    return 0;
}

int blocks_reserve(Blocks *self, Py_ssize_t more) {
    if (more <= self->room - self->count && self->items != NULL) {
        return 0;
    }
    Py_ssize_t room = self->room > 32 ? self->room * 2 : 64;
    room = room - self->count < more ? self->count + more : room;
    TRY(RAW_RESIZE(self->items, room > PY_SSIZE_T_MAX / 16 ? SIZE_MAX : (size_t)room));
    self->room = room;
    return 0;
}

int u32s_reserve(U32s *self, Py_ssize_t more) {
    if (more <= self->room - self->count && self->items != NULL) {
        return 0;
    }
    size_t room = (size_t)self->count + (size_t)more + (size_t)self->room / 2 + 16;
    TRY(RAW_RESIZE(self->items, room));
    self->room = (Py_ssize_t)room;
    return 0;
}

int u64s_read(GivenU64s *self, PyObject *given) {
    *self = (GivenU64s){.at = NULL};
    if (PyObject_CheckBuffer(given)) {
        TRY(PyObject_GetBuffer(given, &self->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT));
        const char *format = self->view.format;
        REFUSE(self->view.itemsize != sizeof *self->at || format == NULL ||
               (strcmp(format, "Q") && strcmp(format, "L")), PyExc_TypeError,
               "a buffer of u64s has format Q, not %.20s", format == NULL ? "B" : format);
        self->at = self->view.buf;
        self->count = self->view.len / (Py_ssize_t)sizeof *self->at;
        return 0;
    }
    PyObject *tuple = PySequence_Tuple(given); /* reading an int may change a list */
    NEED(tuple);
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    int failed = RESIZE(self->copied, count ? count : 1) < 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *number = PyTuple_GET_ITEM(tuple, i);
        self->copied[i] = PyLong_AsUnsignedLongLong(number);
        failed = self->copied[i] == UINT64_MAX && PyErr_Occurred() != NULL;
        if (failed && PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_OverflowError, "a u64 is from 0 to 2^64-1, not %.50R", number);
        }
    }
    Py_DECREF(tuple);
    self->at = self->copied;
    self->count = count;
    return failed ? -1 : 0;
}

void u64s_close(GivenU64s *self) {
    PyBuffer_Release(&self->view);
    PyMem_Free(self->copied);
}
