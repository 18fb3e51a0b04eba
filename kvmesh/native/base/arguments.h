/* The arguments of calls from Python: put in order, checked and converted. */
#pragma once

#include "base/base.h"

/* Return text as a str itself, a new reference: methods of a subclass could do anything where names
 * are looked up. NULL with TypeError set when it is none.
 */
static inline PyObject *read_text(const char *what, PyObject *given) {
    if (PyUnicode_CheckExact(given)) {
        return Py_NewRef(given);
    }
    REFUSE_OR_NULL(!PyUnicode_Check(given), PyExc_TypeError, "%s is a str, not %.100R", what,
                   given);
    return PyUnicode_FromObject(given);
}

/* Read the arguments of a call: -1 with TypeError or OverflowError set, which names the function and
 * the argument.
 *
 * `types` has a letter for each argument, and where to put it follows: O any object, U a str, S a bytes,
 * T a tuple, D a dict, ! one of a type, which stands before its place, all borrowed, with a + before it
 * a new reference, which is there even if a later argument is wrong; L a long long,
 * N the nearest one to an int of any size, n a Py_ssize_t, K a uint64_t, d a double, p an int, whether
 * it is true. Behind | arguments may be left out, their places are not touched; behind $ they are given
 * by name. `names` has the arguments' names with a space between.
 */
int read_arguments(PyObject *const *args, Py_ssize_t nargs, PyObject *keywords,
                   const char *function, const char *types, const char *names, ...);

/* The same of the tuple and the dict that tp_new has. */
int read_new(PyObject *args, PyObject *keywords, const char *function, const char *types,
             const char *names, ...);

/* What a METH_FASTCALL | METH_KEYWORDS method, a METH_FASTCALL one and tp_new are given beside the object,
 * and how they read it.
 */
#define NAMED_ARGUMENTS ARGUMENTS, PyObject *keywords
#define ARGUMENTS PyObject *const *args, Py_ssize_t nargs
#define NEW_ARGUMENTS PyTypeObject *type, PyObject *args, PyObject *keywords
#define READ(...) read_arguments(args, nargs, keywords, __VA_ARGS__)
#define READ_PLACED(...) read_arguments(args, nargs, NULL, __VA_ARGS__)
#define READ_NEW(...) read_new(args, keywords, __VA_ARGS__)

/* Read an attribute as one of the numbers above; -1 with an error set. */
int read_attribute(PyObject *object, PyObject *name, char type, void *number);

/* Read an int of any size as a long long, the nearest one; -1 with TypeError set. */
static inline int read_amount(PyObject *given, long long *number) {
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (overflow) {
        *number = overflow < 0 ? LLONG_MIN : LLONG_MAX;
    }
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int read_double(PyObject *given, double *number) {
    *number = PyFloat_AsDouble(given);
    return *number == -1.0 && PyErr_Occurred() ? -1 : 0;
}
