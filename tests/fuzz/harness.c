/* libFuzzer around an interpreter that has the compiled core built in, instrumented.
 *
 * `kvmesh._native` is this program's own: it is registered before Python starts. FUZZ_PATH is sys.path
 * (of the checkout and its environment), FUZZ_TARGET the name of a target of tests/fuzz/targets.py.
 * The target is called with each input; what it raises is printed and ends the process.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

PyMODINIT_FUNC PyInit__native(void);

static PyObject *target;

static const char begin[] =
    "import os, sys\n"
    "sys.path[:0] = os.environ['FUZZ_PATH'].split(os.pathsep)\n"
    "import fuzzed_native\n"
    "sys.modules['kvmesh._native'] = fuzzed_native\n"
    "import kvmesh\n"
    "kvmesh._native = fuzzed_native\n"
    "from kvmesh._native import Table\n"
    "assert Table is fuzzed_native.Table, 'the instrumented core is not the one in use'\n"
    "from tests.fuzz.targets import TARGETS\n"
    "sys.fuzz_target = TARGETS[os.environ['FUZZ_TARGET']]\n";

static void fail(void) {
    PyErr_Print();
    fflush(stderr);
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    if (PyImport_AppendInittab("fuzzed_native", PyInit__native) < 0) {
        abort();
    }
    Py_InitializeEx(0);
    if (PyRun_SimpleString(begin) != 0) {
        abort();
    }
    target = PySys_GetObject("fuzz_target");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    PyObject *input = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    PyObject *done = input == NULL ? NULL : PyObject_CallOneArg(target, input);
    if (done == NULL) {
        fail();
    }
    Py_DECREF(done);
    Py_DECREF(input);
    return 0;
}
