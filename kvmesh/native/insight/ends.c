/* RequestEnds: how requests ended, by outcome and by the class of what the client got. */
#include "base/shell.h"
#include "insight/totals.h"

/* In the order of transport.http.server.scope.End. */
static const char *const outcomes[OUTCOMES] = {"finished", "client_gone", "failed",
                                               "cut",      "refused",     "crashed"};

static int outcome_from(PyObject *name) {
    for (int outcome = 0; outcome < OUTCOMES && PyUnicode_Check(name); outcome++) {
        if (PyUnicode_CompareWithASCIIString(name, outcomes[outcome]) == 0) {
            return outcome;
        }
    }
    return set_error(PyExc_ValueError, "%R is no end of a request", name);
}

static PyObject *add_method(RequestEnds *self, PyObject *const *args, Py_ssize_t nargs) {
    PyObject *name;
    long long status;
    if (READ_PLACED("add", "OL", "outcome status", &name, &status) < 0) {
        return NULL;
    }
    int outcome = outcome_from(name);
    if (outcome < 0) {
        return NULL;
    }
    ends_add(self, outcome, (long)status);
    Py_RETURN_NONE;
}

static PyObject *counts_method(RequestEnds *self, PyObject *Py_UNUSED(none)) {
    PyObject *rows = PyList_New(0);
    for (int outcome = 0; rows != NULL && outcome < OUTCOMES; outcome++) {
        for (int class = 0; rows != NULL && class < STATUS_CLASSES; class++) {
            PyObject *row = Py_BuildValue("siL", outcomes[outcome], class,
                                          self->counts[outcome][class]);
            append_made(&rows, row);
        }
    }
    return rows;
}

static PyMethodDef methods[] = {
    METHOD_FASTCALL("add", add_method),
    METHOD_NOARGS("counts", counts_method),
    {NULL, NULL, 0, NULL},
};

PyTypeObject request_ends_type = {
    PLAIN_TYPE("RequestEnds", RequestEnds),
    .tp_methods = methods,
};
