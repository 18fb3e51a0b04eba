/* Histogram and TokenCounts: counts that a request adds to in passing. */
#include "base/arrays.h"
#include "base/shell.h"
#include "insight/totals.h"

void histogram_observe(Histogram *self, double value) {
    Py_ssize_t low = 0, high = self->size;
    BISECT(low, high, self->upper[middle] < value);
    self->counts[low]++;
    self->total += value;
}

static PyObject *observe_method(Histogram *self, PyObject *given) {
    double value;
    TRY_OR_NULL(read_double(given, &value));
    histogram_observe(self, value);
    Py_RETURN_NONE;
}

static PyObject *cumulative_method(Histogram *self, PyObject *Py_UNUSED(none)) {
    long long count = 0;
    PyObject *rows = PyList_New(0);
    for (Py_ssize_t i = 0; rows != NULL && i <= self->size; i++) {
        count += self->counts[i];
        PyObject *row = Py_BuildValue("dL", i < self->size ? self->upper[i] : Py_HUGE_VAL, count);
        append_made(&rows, row);
    }
    return rows;
}

static int read_bounds(Histogram *self, PyObject *bounds) {
    self->size = PyTuple_GET_SIZE(bounds);
    self->upper = PyMem_Calloc((size_t)self->size + 1, sizeof *self->upper);
    self->counts = PyMem_Calloc((size_t)self->size + 1, sizeof *self->counts);
    NEED_MEMORY(self->upper);
    NEED_MEMORY(self->counts);
    for (Py_ssize_t i = 0; i < self->size; i++) {
        self->upper[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(bounds, i));
        TRY(no_error());
        REFUSE(i && !(self->upper[i - 1] < self->upper[i]), PyExc_ValueError,
               "the bounds of a histogram rise");
    }
    return 0;
}

static PyObject *histogram_new(NEW_ARGUMENTS) {
    PyObject *given;
    TRY_OR_NULL(READ_NEW("Histogram", "O", "bounds", &given));
    PyObject *bounds = PySequence_Tuple(given);
    Histogram *self = bounds == NULL ? NULL : (Histogram *)type->tp_alloc(type, 0);
    if (self != NULL && read_bounds(self, bounds) < 0) {
        Py_CLEAR(self);
    }
    Py_XDECREF(bounds);
    return (PyObject *)self;
}

static void histogram_dealloc(Histogram *self) {
    FREE_ALL(self->upper, self->counts);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

MEMBERS(histogram_members, FIELDS(Histogram, T_DOUBLE, 0, total))

METHODS(histogram_methods,
    METHOD_O("observe", observe_method),
    METHOD_NOARGS("cumulative", cumulative_method))

PyTypeObject histogram_type = {
    TYPE("Histogram", Histogram, histogram),
    .tp_members = histogram_members, .tp_methods = histogram_methods,
};

MEMBERS(token_members,
    FIELDS(TokenCounts, T_LONGLONG, 0, prompt, reported, predicted, cached, saved)
    FIELDS(TokenCounts, T_DOUBLE, 0, saved_s))

PyTypeObject token_counts_type = {
    PLAIN_TYPE("TokenCounts", TokenCounts),
    .tp_members = token_members,
};
