/* The sharing keys that a worker's requests hold, with how many of them do. */
#include "loads.h"

long long loads_count_keys(Loads *self, PyObject *keys, int up) {
    PyObject *fast = PySequence_Fast(keys, "sharing keys are a sequence");
    long long turned = fast == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; turned >= 0 && i < PySequence_Fast_GET_SIZE(fast); i++) {
        PyObject *key = Py_NewRef(PySequence_Fast_GET_ITEM(fast, i));
        PyObject *known = PyDict_GetItemWithError(self->shared, key);
        long long count = known == NULL ? 0 : PyLong_AsLongLong(known);
        if (known == NULL && !up && !PyErr_Occurred()) {
            PyErr_SetObject(PyExc_KeyError, key);
        }
        int failed = PyErr_Occurred() != NULL;
        if (!failed && !up && count == 1) {
            failed = PyDict_DelItem(self->shared, key) < 0;
            turned++;
        } else if (!failed) {
            PyObject *next = PyLong_FromLongLong(up ? count + 1 : count - 1);
            failed = next == NULL || PyDict_SetItem(self->shared, key, next) < 0;
            Py_XDECREF(next);
            turned += count == 0;
        }
        Py_DECREF(key);
        turned = failed ? -1 : turned;
    }
    Py_XDECREF(fast);
    return turned;
}

/* 1, 0, or -1 with an error set. */
static int is_shared(const Loads *self, PyObject *keys, long long number) {
    return PyDict_Contains(self->shared, PyTuple_GET_ITEM(keys, number - 1));
}

long long loads_shared_blocks(const Loads *self, PyObject *keys, long long stride,
                              long long overlap) {
    long long low = 1, high = PyTuple_GET_SIZE(keys);
    high = high < overlap / stride ? high : overlap / stride;
    if (PyDict_GET_SIZE(self->shared) == 0 || high < 1) {
        return 0;
    }
    int found = is_shared(self, keys, 1);
    while (found > 0 && low < high) {
        long long middle = (low + high + 1) >> 1;
        found = is_shared(self, keys, middle);
        if (found) {
            low = middle;
        } else {
            high = middle - 1;
            found = 1;
        }
    }
    return found < 0 ? -1 : found * low * stride;
}
