/* Ratio and WorkerState: how fast a worker is, and all that is known of it. */
#include "base/shell.h"
#include "speeds/states.h"

#define FLOAT(name) \
    { #name, T_DOUBLE, offsetof(Ratio, name), 0, NULL }

static PyMemberDef ratio_members[] = {
    FLOAT(ms), FLOAT(tokens), FLOAT(squares), FLOAT(error), FLOAT(factor),
    FLOAT(slow_ms),
    {NULL, 0, 0, 0, NULL},
};

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

static void state_dealloc(WorkerState *self) {
    XDECREF_ALL(self->worker, self->loads, self->prefill, self->info, self->report, self->gaps);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *state_loads(WorkerState *self, void *Py_UNUSED(closure)) {
    return Py_NewRef(self->loads);
}

static int state_set_loads(WorkerState *self, PyObject *value, void *Py_UNUSED(closure)) {
    REFUSE(value == NULL || !Py_IS_TYPE(value, &loads_type), PyExc_TypeError,
           "a worker's loads are a Loads");
    Py_SETREF(self->loads, (Loads *)Py_NewRef(value));
    return 0;
}

static PyMemberDef state_members[] = {
    {"worker", T_OBJECT_EX, offsetof(WorkerState, worker), READONLY, NULL},
    {"prefill", T_OBJECT_EX, offsetof(WorkerState, prefill), READONLY, NULL},
    {"info", T_OBJECT_EX, offsetof(WorkerState, info), 0, NULL},
    {"report", T_OBJECT_EX, offsetof(WorkerState, report), 0, NULL},
    {"gaps", T_OBJECT_EX, offsetof(WorkerState, gaps), 0, NULL},
    {"capacity_blocks", T_LONGLONG, offsetof(WorkerState, capacity_blocks), 0, NULL},
    {"blank_blocks", T_LONGLONG, offsetof(WorkerState, blank_blocks), 0, NULL},
    {"failure_share", T_DOUBLE, offsetof(WorkerState, failure_share), 0, NULL},
    {"lost_ms", T_DOUBLE, offsetof(WorkerState, lost_ms), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef state_getters[] = {
    {"loads", (getter)state_loads, (setter)state_set_loads, "Its live sums.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject worker_state_type = {
    TYPE("WorkerState", WorkerState, state),
    .tp_members = state_members,
    .tp_getset = state_getters,
};
