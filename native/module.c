/* kvmesh._native: the compiled core. `kvmesh.compiled` decides whether it is used. */
#include "core.h"

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "kvmesh._native",
    .m_doc = "The hash chain of kvmesh.core, compiled.",
    .m_size = -1,
    .m_methods = native_hashing_methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", NATIVE_VERSION) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
