/* kvmesh._native: the compiled core. `kvmesh.compiled` decides whether it is used. */
#include "table.h"

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "kvmesh._native",
    .m_doc = "The hash chain and the block table of kvmesh.core, compiled.",
    .m_size = -1,
    .m_methods = native_hashing_methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (search_ready() < 0 || PyType_Ready(&holding_type) < 0 || PyType_Ready(&table_type) < 0 ||
        PyType_Ready(&frozen_type) < 0 || PyType_Ready(&loader_type) < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddIntConstant(module, "VERSION", NATIVE_VERSION) < 0 ||
                           PyModule_AddObjectRef(module, "Table", (PyObject *)&table_type) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
