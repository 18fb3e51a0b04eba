/* Ratio and WorkerState: how fast a worker is, and all that is known of it. */
#include "base/shell.h"
#include "speeds/states.h"

MEMBERS(ratio_members, FIELDS(Ratio, T_DOUBLE, 0, ms, tokens, squares, error, factor, slow_ms))

PyTypeObject ratio_type = {
    SLOTS("Ratio", sizeof(Ratio), Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_members = ratio_members,
};

static PyObject *state_new(NEW_ARGUMENTS) {
    WorkerState *self = (WorkerState *)type->tp_alloc(type, 0);
    if (self != NULL &&
        ((self->gaps = PyTuple_New(0)) == NULL ||
         READ_NEW("WorkerState", "+U+!+!+O+O", "worker loads prefill info report", &self->worker,
                  &loads_type, &self->loads, &ratio_type, &self->prefill, &self->info,
                  &self->report) < 0)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

DEALLOC(WorkerState, state, worker, loads, prefill, info, report, gaps)

GETTER(WorkerState, state_loads, Py_NewRef(self->loads))

static int state_set_loads(WorkerState *self, PyObject *value, void *Py_UNUSED(closure)) {
    REFUSE(value == NULL || !Py_IS_TYPE(value, &loads_type), PyExc_TypeError,
           "a worker's loads are a Loads");
    Py_SETREF(self->loads, (Loads *)Py_NewRef(value));
    return 0;
}

MEMBERS(state_members,
    FIELDS(WorkerState, T_OBJECT_EX, READONLY, worker, prefill)
    FIELDS(WorkerState, T_OBJECT_EX, 0, info, report, gaps)
    FIELDS(WorkerState, T_LONGLONG, 0, capacity_blocks, blank_blocks, own_tokens)
    FIELDS(WorkerState, T_DOUBLE, 0, failure_share, lost_ms))

GETTERS(state_getters,
    {"loads", (getter)state_loads, (setter)state_set_loads, "Its live sums.", NULL})

PyTypeObject worker_state_type = {
    TYPE("WorkerState", WorkerState, state),
    .tp_members = state_members, .tp_getset = state_getters,
};
