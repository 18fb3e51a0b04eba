/* Booking: one request at one worker. */
#include "base/shell.h"
#include "loads/loads.h"

Booking *booking_make(Py_ssize_t keys) {
    return (Booking *)booking_type.tp_alloc(&booking_type, keys);
}

static void booking_dealloc(Booking *self) {
    XDECREF_ALL(self->request_id, self->worker, self->owner, self->hashes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *booking_repr(Booking *self) {
    return PyUnicode_FromFormat("Booking(%R, %R, %R)", self->request_id, self->worker, self->owner);
}

static PyObject *booking_keys(Booking *self, void *Py_UNUSED(closure)) {
    PyObject *keys = PyTuple_New(Py_SIZE(self));
    for (Py_ssize_t i = 0; keys != NULL && i < Py_SIZE(self); i++) {
        PyObject *key = PyLong_FromUnsignedLongLong(self->keys[i]);
        set_made(&keys, i, key);
    }
    return keys;
}

static PyObject *booking_flag(Booking *self, void *which) {
    const char *name = which;
    return PyBool_FromLong(name[0] == 's'   ? self->streams
                           : name[0] == 'p' ? self->prefilling
                                            : self->turn);
}

#define NAME(name) \
    { #name, T_OBJECT_EX, offsetof(Booking, name), READONLY, NULL }
#define NUMBER(name) \
    { #name, T_LONGLONG, offsetof(Booking, name), READONLY, NULL }
#define TIME(name) \
    { #name, T_DOUBLE, offsetof(Booking, name), READONLY, NULL }

static PyMemberDef members[] = {
    NAME(request_id),
    NAME(worker),
    NAME(owner),
    {"hashes", T_OBJECT, offsetof(Booking, hashes), READONLY, NULL},
    NUMBER(prompt_tokens),
    NUMBER(uncached_tokens),
    NUMBER(service_tokens),
    NUMBER(private_blocks),
    NUMBER(expected_blocks),
    NUMBER(foreseen_blocks),
    NUMBER(output_tokens),
    TIME(booked_s),
    TIME(renewed_s),
    TIME(output_s),
    TIME(service_s),
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"keys", (getter)booking_keys, NULL, "Its sharing keys.", NULL},
    {"streams", (getter)booking_flag, NULL, "Whether its first token will be seen.", "s"},
    {"prefilling", (getter)booking_flag, NULL, "Whether its prefill has not ended.", "p"},
    {"turn", (getter)booking_flag, NULL, "Whether it was its worker's turn.", "t"},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject booking_type = {
    SLOTS("Booking", offsetof(Booking, keys), Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_itemsize = sizeof(uint64_t),
    .tp_dealloc = (destructor)booking_dealloc,
    .tp_repr = (reprfunc)booking_repr,
    .tp_members = members,
    .tp_getset = getters,
};
