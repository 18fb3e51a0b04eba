/* The key of all tables of this process: see mixing.h. */
#include "base/mixing.h"

MixingKey mixing_key;

static void use_key(uint64_t white, uint64_t first, uint64_t second) {
    mixing_key = (MixingKey){white, first | 1, second | 1};
}

int mixing_ready(void) {
    uint64_t words[3];
    PyObject *os = PyImport_ImportModule("os");
    PyObject *drawn = os == NULL ? NULL : PyObject_CallMethod(os, "urandom", "i", (int)sizeof words);
    Py_XDECREF(os);
    if (drawn == NULL) {
        return -1;
    }
    int failed = !PyBytes_Check(drawn) || PyBytes_GET_SIZE(drawn) != (Py_ssize_t)sizeof words;
    if (failed) {
        PyErr_SetString(PyExc_RuntimeError, "os.urandom gave something else than was asked for");
    } else {
        memcpy(words, PyBytes_AS_STRING(drawn), sizeof words);
        use_key(words[0], words[1], words[2]);
    }
    Py_DECREF(drawn);
    return failed ? -1 : 0;
}

PyDoc_STRVAR(rekey_doc, "rekey(white, first, second) -> tuple[int, int, int]\n\n"
"Place numbers by this key from now on; return the one before. For tests: tables that hold anything\n"
"are lost, so put the key back before they are touched. The latter two are made odd.");

static PyObject *rekey(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long white, first, second;
    if (!PyArg_ParseTuple(args, "KKK:rekey", &white, &first, &second)) {
        return NULL;
    }
    PyObject *before = Py_BuildValue("KKK", (unsigned long long)mixing_key.white,
                                     (unsigned long long)mixing_key.first,
                                     (unsigned long long)mixing_key.second);
    if (before != NULL) {
        use_key(white, first, second);
    }
    return before;
}

PyDoc_STRVAR(mix_doc, "mix(number) -> int\n\n"
"Return where tables place a u64: the upper bits count. For tests.");

static PyObject *mix(PyObject *module, PyObject *object) {
    (void)module;
    uint64_t number = PyLong_AsUnsignedLongLong(object);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(mixed(number));
}

PyMethodDef native_mixing_methods[] = {
    {"mix", (PyCFunction)mix, METH_O, mix_doc},
    {"rekey", (PyCFunction)rekey, METH_VARARGS, rekey_doc},
    {NULL, NULL, 0, NULL},
};
