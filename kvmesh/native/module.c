/* kvmesh._native: the compiled core. `kvmesh.core` refuses another version. */
#include "base/mixing.h"
#include "base/names.h"
#include "beliefs/approx.h"
#include "beliefs/beliefs.h"
#include "bodies/bodies.h"
#include "decide/decide.h"
#include "engines/contents.h"
#include "engines/engines.h"
#include "groups/groups.h"
#include "http2/http2.h"
#include "index/prompt.h"
#include "insight/insight.h"
#include "insight/totals.h"
#include "peers/booking_wire.h"
#include "peers/outbox.h"
#include "peers/peer.h"
#include "peers/peers.h"
#include "prompts/packer.h"
#include "prompts/prompts.h"
#include "table/table.h"
#include "wire/head.h"
#include "wire/sse.h"
#include "wire/wire.h"

/* What has to be prepared before any type is. */
static int (*const preparations[])(void) = {
    names_ready,
    hashed_ready,
    hpack_ready,
    mixing_ready,
    sequences_ready,
    speeds_ready,
    take_ready,
    text_cache_ready,
};

/* Types that are not found in the module. */
static PyTypeObject *const inner_types[] = {
    &frozen_type,
    &hashed_type,
    &holding_type,
    &leases_type,
    &loader_type,
    &part_type,
    &published_type,
    &view_type,
};

static PyTypeObject *const types[] = {
    &approx_type,
    &arrivals_type,
    &booking_type,
    &course_type,
    &decider_type,
    &engine_cache_type,
    &event_stream_type,
    &forecasts_type,
    &formula_type,
    &group_table_type,
    &head_type,
    &histogram_type,
    &lengths_type,
    &loads_type,
    &message_fold_type,
    &names_type,
    &outbox_type,
    &peer_type,
    &placed_type,
    &prefix_counts_type,
    &ratio_type,
    &record_type,
    &ring_type,
    &robin_shadow_type,
    &scanned_type,
    &sequences_type,
    &session_type,
    &speeds_type,
    &step_times_type,
    &table_type,
    &text_cache_type,
    &text_packer_type,
    &time_errors_type,
    &token_counts_type,
    &totals_type,
    &worker_state_type,
};

static PyMethodDef *const functions[] = {
    native_extproc_read_methods,
    native_head_methods,
    native_json_methods,
    native_keep_methods,
    native_mixing_methods,
    native_scan_methods,
    native_scanned_methods,
    native_take_methods,
    native_usage_methods,
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "kvmesh._native",
    .m_doc = "The request path of kvmesh.core, and its index, compiled.",
    .m_size = -1,
    .m_methods = native_hashing_methods,
};

/* Constants that Python shares: tests/property/native/test_native_constants.py. */
static const struct {
    const char *name;
    long long value;
} numbers[] = {
    {"DUE", STREAM_DUE},
    {"ENDED", STREAM_ENDED},
    {"ENTRY_OVERHEAD", ENTRY_OVERHEAD},
    {"KEY_BYTES", KEY_BYTES},
    {"MAX_KIND", MAX_KIND},
    {"MAX_RELEASED", MAX_RELEASED},
    {"MOST_GRADED", MOST_GRADED},
    {"MOST_STATES", MOST_STATES},
    {"MOST_TIERS", MOST_TIERS},
    {"MOST_TOKENS", MOST_TOKENS},
    {"MOST_WEIGHTS", MOST_WEIGHTS},
    {"SHARDS", SHARDS},
    {"TAKEN", STREAM_TAKEN},
    {"VERSION", NATIVE_VERSION},
};

static const struct {
    const char *name;
    double value;
} floats[] = {
    {"GAMMA", GAMMA},
    {"OVERDUE", OVERDUE},
    {"RENEW_S", RENEW_S},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int prepare(void) {
    for (size_t i = 0; i < COUNT(preparations); i++) {
        TRY(preparations[i]());
    }
    for (size_t i = 0; i < COUNT(inner_types); i++) {
        TRY(PyType_Ready(inner_types[i]));
    }
    return 0;
}

static int add_value(PyObject *module, const char *name, PyObject *value) {
    int failed = value == NULL ? -1 : PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return failed;
}

static int fill(PyObject *module) {
    for (size_t i = 0; i < COUNT(numbers); i++) {
        TRY(add_value(module, numbers[i].name, PyLong_FromLongLong(numbers[i].value)));
    }
    for (size_t i = 0; i < COUNT(floats); i++) {
        TRY(add_value(module, floats[i].name, PyFloat_FromDouble(floats[i].value)));
    }
    for (size_t i = 0; i < COUNT(functions); i++) {
        TRY(PyModule_AddFunctions(module, functions[i]));
    }
    for (size_t i = 0; i < COUNT(types); i++) {
        TRY(PyModule_AddType(module, types[i]));
    }
    return 0;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = prepare() < 0 ? NULL : PyModule_Create(&definition);
    if (module != NULL && fill(module) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
