/* The key of all tables of this process: see mixing.h. */
#include "base/mixing.h"
#include "base/shell.h"

MixingKey mixing_key;

static void use_key(uint64_t white, uint64_t first, uint64_t second) {
    mixing_key = (MixingKey){white, first | 1, second | 1};
}

int mixing_ready(void) {
    uint64_t words[3];
    PyObject *os = PyImport_ImportModule("os");
    PyObject *drawn = os == NULL ? NULL : PyObject_CallMethod(os, "urandom", "i", (int)sizeof words);
    Py_XDECREF(os);
    NEED(drawn);
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

static PyObject *rekey(PyObject *Py_UNUSED(module), ARGUMENTS) {
    uint64_t white, first, second;
    TRY_OR_NULL(READ_PLACED("rekey", "KKK", "white first second", &white, &first, &second));
    PyObject *before = Py_BuildValue("KKK", (unsigned long long)mixing_key.white,
                                     (unsigned long long)mixing_key.first,
                                     (unsigned long long)mixing_key.second);
    if (before != NULL) {
        use_key(white, first, second);
    }
    return before;
}

static PyObject *mix(PyObject *Py_UNUSED(module), PyObject *object) {
    uint64_t number = PyLong_AsUnsignedLongLong(object);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(mixed(number));
}

PyMethodDef native_mixing_methods[] = {
    METHOD_O("mix", mix),
    METHOD_FASTCALL("rekey", rekey),
    {NULL, NULL, 0, NULL},
};
