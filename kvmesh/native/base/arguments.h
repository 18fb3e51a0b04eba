/* Arguments that are checked by hand, for what is called too often for PyArg_ParseTupleAndKeywords. */
#ifndef KVMESH_ARGUMENTS_H
#define KVMESH_ARGUMENTS_H

#include "base/base.h"

/* Return text as a str itself, a new reference: methods of a subclass could do anything where names
 * are looked up. NULL with TypeError set when it is none.
 */
static inline PyObject *read_text(const char *what, PyObject *given) {
    if (PyUnicode_CheckExact(given)) {
        return Py_NewRef(given);
    }
    if (!PyUnicode_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%s is a str, not %.100R", what, given);
        return NULL;
    }
    return PyUnicode_FromObject(given);
}

/* Put the arguments of a METH_FASTCALL | METH_KEYWORDS call in the order of `names`, borrowed, NULL
 * where one is left out; the first `needed` may not be. -1 with TypeError set.
 */
static inline int sort_arguments(const char *function, const char *const *names, Py_ssize_t most,
                                 Py_ssize_t needed, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *keywords, PyObject **sorted) {
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (nargs > most) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, most, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < most; i++) {
        sorted[i] = i < nargs ? args[i] : NULL;
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, i);
        Py_ssize_t at = 0;
        while (at < most && PyUnicode_CompareWithASCIIString(name, names[at]) != 0) {
            at++;
        }
        if (at == most || sorted[at] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s has no argument %R, or has it twice", function, name);
            return -1;
        }
        sorted[at] = args[nargs + i];
    }
    for (Py_ssize_t i = 0; i < needed; i++) {
        if (sorted[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s needs %s", function, names[i]);
            return -1;
        }
    }
    return 0;
}

#endif
