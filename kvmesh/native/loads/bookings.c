/* Booking: one request at one worker. */
#include "base/shell.h"
#include "loads/loads.h"

Booking *booking_make(Py_ssize_t keys) {
    return (Booking *)booking_type.tp_alloc(&booking_type, keys);
}

static PyObject *booking_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *keywords) {
    PyObject *request_id, *worker, *owner, *given_keys = NULL, *hashes = Py_None;
    int streams = 1, prefilling = 1, turn = 0;
    Booking of = {.place = 0};
    if (READ_NEW("Booking", "UUUNNNddd|pOONNNNpdp",
                 "request_id worker owner prompt_tokens uncached_tokens service_tokens booked_s "
                 "renewed_s output_s streams keys hashes private_blocks expected_blocks "
                 "foreseen_blocks output_tokens prefilling service_s turn",
                 &request_id, &worker, &owner, &of.prompt_tokens, &of.uncached_tokens,
                 &of.service_tokens, &of.booked_s, &of.renewed_s, &of.output_s, &streams,
                 &given_keys, &hashes, &of.private_blocks, &of.expected_blocks,
                 &of.foreseen_blocks, &of.output_tokens, &prefilling, &of.service_s, &turn) < 0) {
        return NULL;
    }
    const long long amounts[] = {of.prompt_tokens,  of.uncached_tokens, of.service_tokens,
                                 of.private_blocks, of.expected_blocks, of.foreseen_blocks,
                                 of.output_tokens};
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
        if (amounts[i] < -MOST_TOKENS || amounts[i] > MOST_TOKENS) {
            return PyErr_Format(PyExc_OverflowError, "a booking counts to %lld, not %lld",
                                MOST_TOKENS, amounts[i]);
        }
    }
    Keys keys = {.at = keys.own};
    Booking *self = NULL;
    if (given_keys == NULL || keys_read(&keys, given_keys) == 0) {
        self = booking_make(keys.count);
    }
    if (self != NULL) {
        memcpy(self->keys, keys.at, (size_t)keys.count * sizeof *keys.at);
        memcpy(&self->prompt_tokens, &of.prompt_tokens,
               offsetof(Booking, streams) - offsetof(Booking, prompt_tokens));
        self->streams = streams != 0;
        self->prefilling = prefilling != 0;
        self->turn = turn != 0;
        self->hashes = hashes == Py_None ? NULL : Py_NewRef(hashes);
        /* Of no subclass, whose methods could do anything where bookings are looked up. */
        self->request_id = read_text("a request id", request_id);
        self->worker = read_text("a worker", worker);
        self->owner = read_text("an owner", owner);
        if (self->request_id == NULL || self->worker == NULL || self->owner == NULL) {
            Py_CLEAR(self);
        }
    }
    keys_free(&keys);
    return (PyObject *)self;
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
    SLOTS("Booking", offsetof(Booking, keys), 0),
    .tp_itemsize = sizeof(uint64_t),
    .tp_new = booking_new,
    .tp_dealloc = (destructor)booking_dealloc,
    .tp_repr = (reprfunc)booking_repr,
    .tp_members = members,
    .tp_getset = getters,
};
