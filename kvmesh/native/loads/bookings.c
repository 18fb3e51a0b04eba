/* Booking: one request at one worker. */
#include "base/shell.h"
#include "loads/loads.h"

Booking *booking_make(Py_ssize_t keys) {
    return (Booking *)booking_type.tp_alloc(&booking_type, keys);
}

DEALLOC(Booking, booking, request_id, worker, owner, hashes)

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

MEMBERS(members,
    FIELDS(Booking, T_OBJECT_EX, READONLY, request_id, worker, owner)
    FIELDS(Booking, T_OBJECT, READONLY, hashes)
    FIELDS(Booking, T_LONGLONG, READONLY, prompt_tokens, uncached_tokens, service_tokens,
           private_blocks, expected_blocks, foreseen_blocks, output_tokens)
    FIELDS(Booking, T_DOUBLE, READONLY, booked_s, renewed_s, output_s, service_s)
    FIELDS(Booking, T_USHORT, READONLY, keep_s))

GETTERS(getters,
    {"keys", (getter)booking_keys, NULL, "Its sharing keys.", NULL},
    {"streams", (getter)booking_flag, NULL, "Whether its first token will be seen.", "s"},
    {"prefilling", (getter)booking_flag, NULL, "Whether its prefill has not ended.", "p"},
    {"turn", (getter)booking_flag, NULL, "Whether it was its worker's turn.", "t"})

PyTypeObject booking_type = {
    SLOTS("Booking", offsetof(Booking, keys), Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_itemsize = sizeof(uint64_t),
    .tp_dealloc = (destructor)booking_dealloc,
    .tp_repr = (reprfunc)booking_repr,
    .tp_members = members, .tp_getset = getters,
};
