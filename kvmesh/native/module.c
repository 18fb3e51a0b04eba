/* kvmesh._native: the compiled core. `kvmesh.compiled` decides whether it is used. */
#include "loads.h"
#include "readers.h"
#include "table.h"
#include "totals.h"

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "kvmesh._native",
    .m_doc = "The hash chain, the block table, the loads and the costs of kvmesh.core, compiled.",
    .m_size = -1,
    .m_methods = native_hashing_methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyTypeObject *inner[] = {&holding_type, &frozen_type, &loader_type};
    PyTypeObject *types[] = {&table_type,     &loads_type,   &ratio_type,
                             &worker_state_type, &formula_type, &record_type,
                             &ring_type,      &totals_type,  &histogram_type,
                             &token_counts_type, &request_ends_type,
                             &prefix_counts_type, &robin_shadow_type};
    if (search_ready() < 0 || loads_ready() < 0 || records_ready() < 0) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
        if (PyType_Ready(inner[i]) < 0) {
            return NULL;
        }
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddIntConstant(module, "VERSION", NATIVE_VERSION) < 0 ||
                           PyModule_AddFunctions(module, native_home_methods) < 0 ||
                           PyModule_AddFunctions(module, native_json_methods) < 0)) {
        Py_CLEAR(module);
    }
    for (size_t i = 0; module != NULL && i < sizeof types / sizeof *types; i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            Py_CLEAR(module);
        }
    }
    return module;
}
