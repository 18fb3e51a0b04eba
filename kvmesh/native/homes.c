/* Which of equally good workers a new prefix belongs to: core.selection.pure_find_home. */
#include "core.h"
#include "xxh3.h"

/* Return the most that any of the names has in `overlaps`, -1 with an error set. */
static long long find_most(PyObject *names, PyObject *overlaps) {
    long long most = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *found = PyDict_GetItemWithError(overlaps, PyTuple_GET_ITEM(names, i));
        long long overlap = found == NULL ? 0 : PyLong_AsLongLong(found);
        if (PyErr_Occurred()) {
            return -1;
        }
        most = overlap > most ? overlap : most;
    }
    return most;
}

/* Return the index of the name with the most weight of those with `most`; -1 with an error set. */
static Py_ssize_t heaviest(PyObject *names, PyObject *overlaps, long long most, uint64_t key) {
    Py_ssize_t home = -1, size;
    uint64_t weight = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        PyObject *found = PyDict_GetItemWithError(overlaps, name);
        long long overlap = found == NULL ? 0 : PyLong_AsLongLong(found);
        if (PyErr_Occurred()) {
            return -1;
        }
        if (overlap != most) {
            continue;
        }
        const char *text = PyUnicode_AsUTF8AndSize(name, &size);
        if (text == NULL) {
            return -1;
        }
        uint64_t own = xxh3_64(text, (size_t)size, key);
        if (home < 0 || own > weight) {
            weight = own;
            home = i;
        }
    }
    if (home < 0) {
        PyErr_SetString(PyExc_ValueError, "nobody is anybody's home");
    }
    return home;
}

/* The index as an int, -1 as one where no block is left, NULL with an error set. */
static PyObject *home_of(PyObject *names, PyObject *overlaps, PyObject *blocks) {
    long long most = find_most(names, overlaps);
    Py_ssize_t known = PySequence_Size(blocks);
    if (most < 0 || known < 0) {
        return NULL;
    }
    if (most >= known) {
        return PyLong_FromLong(-1);
    }
    PyObject *block = PySequence_GetItem(blocks, (Py_ssize_t)most);
    uint64_t key = block == NULL ? 0 : PyLong_AsUnsignedLongLong(block);
    Py_XDECREF(block);
    Py_ssize_t home = PyErr_Occurred() ? -1 : heaviest(names, overlaps, most, key);
    return home < 0 ? NULL : PyLong_FromSsize_t(home);
}

static PyObject *native_find_home(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 3 || !PyDict_Check(args[1])) {
        return PyErr_Format(PyExc_TypeError, "find_home takes names, a dict and blocks");
    }
    PyObject *names = PySequence_Tuple(args[0]);
    PyObject *home = names == NULL ? NULL : home_of(names, args[1], args[2]);
    Py_XDECREF(names);
    return home;
}

PyMethodDef native_home_methods[] = {
    {"find_home", (PyCFunction)(void (*)(void))native_find_home, METH_FASTCALL,
     "Return the index of the name that the first block they all lack belongs to, or -1."},
    {NULL, NULL, 0, NULL},
};
