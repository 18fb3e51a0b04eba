/* Loads: the live sums of one worker. */
#include "loads.h"

#include <structmember.h>

static PyObject *request_id_name, *uncached_name, *streams_name, *prompt_name, *expected_name,
    *private_name, *keys_name;

int loads_ready(void) {
    struct {
        PyObject **place;
        const char *name;
    } names[] = {
        {&request_id_name, "request_id"}, {&uncached_name, "uncached_tokens"},
        {&streams_name, "streams"},       {&prompt_name, "prompt_tokens"},
        {&expected_name, "expected_blocks"}, {&private_name, "private_blocks"},
        {&keys_name, "keys"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *names[i].place = PyUnicode_InternFromString(names[i].name);
        if (*names[i].place == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Read a whole number of a booking; -1 with an error set. */
static int read_number(PyObject *booking, PyObject *name, long long *number) {
    PyObject *value = PyObject_GetAttr(booking, name);
    if (value == NULL) {
        return -1;
    }
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_silent(PyObject *booking, long long *silent) {
    PyObject *value = PyObject_GetAttr(booking, streams_name);
    int streams = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    *silent = !streams;
    return streams < 0 ? -1 : 0;
}

static PyObject *loads_hold(Loads *self, PyObject *keys) {
    long long turned = loads_count_keys(self, keys, 1);
    return turned < 0 ? NULL : PyLong_FromLongLong(turned);
}

static PyObject *loads_release(Loads *self, PyObject *keys) {
    long long turned = loads_count_keys(self, keys, 0);
    return turned < 0 ? NULL : PyLong_FromLongLong(turned);
}

static int check_count(const char *name, Py_ssize_t got, Py_ssize_t wanted) {
    if (got != wanted) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, got);
        return -1;
    }
    return 0;
}

static PyObject *loads_begin(Loads *self, PyObject *const *args, Py_ssize_t nargs) {
    long long uncached, silent, prompt, expected, own, stride, held = -1;
    if (check_count("begin", nargs, 3) < 0) {
        return NULL;
    }
    PyObject *booking = args[0];
    stride = PyLong_AsLongLong(args[1]);
    double now = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred() || read_number(booking, uncached_name, &uncached) < 0 ||
        read_silent(booking, &silent) < 0 || read_number(booking, prompt_name, &prompt) < 0 ||
        read_number(booking, expected_name, &expected) < 0 ||
        read_number(booking, private_name, &own) < 0) {
        return NULL;
    }
    PyObject *request_id = PyObject_GetAttr(booking, request_id_name);
    PyObject *keys = request_id == NULL ? NULL : PyObject_GetAttr(booking, keys_name);
    int first = PyDict_GET_SIZE(self->prefilling) == 0;
    if (keys != NULL && PyDict_SetItem(self->prefilling, request_id, booking) == 0) {
        held = loads_count_keys(self, keys, 1);
    }
    Py_XDECREF(request_id);
    Py_XDECREF(keys);
    if (held < 0) {
        return NULL;
    }
    if (first) {
        self->progress_s = now;
        self->oldest_tokens = uncached;
    }
    self->prefill_tokens += uncached;
    self->silent += silent;
    self->prompt_tokens += prompt;
    self->active_requests++;
    self->expected_blocks += expected;
    self->active_blocks += own + stride * held;
    Py_RETURN_NONE;
}

static PyObject *loads_end_prefill(Loads *self, PyObject *booking) {
    long long uncached, silent, oldest = 0;
    PyObject *key, *next;
    Py_ssize_t place = 0;
    if (read_number(booking, uncached_name, &uncached) < 0 || read_silent(booking, &silent) < 0) {
        return NULL;
    }
    PyObject *request_id = PyObject_GetAttr(booking, request_id_name);
    int failed = request_id == NULL || PyDict_DelItem(self->prefilling, request_id) < 0;
    Py_XDECREF(request_id);
    if (failed) {
        return NULL;
    }
    if (PyDict_Next(self->prefilling, &place, &key, &next)) {
        Py_INCREF(next);
        failed = read_number(next, uncached_name, &oldest) < 0;
        Py_DECREF(next);
        if (failed) {
            return NULL;
        }
    }
    self->oldest_tokens = oldest;
    self->prefill_tokens -= uncached;
    self->silent -= silent;
    Py_RETURN_NONE;
}

static PyObject *loads_grow(Loads *self, PyObject *const *args, Py_ssize_t nargs) {
    if (check_count("grow", nargs, 2) < 0) {
        return NULL;
    }
    long long blocks = PyLong_AsLongLong(args[0]), expected = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    self->active_blocks += blocks;
    self->expected_blocks -= expected;
    Py_RETURN_NONE;
}

static PyObject *loads_end(Loads *self, PyObject *const *args, Py_ssize_t nargs) {
    long long prompt, expected, own, freed;
    if (check_count("end", nargs, 2) < 0) {
        return NULL;
    }
    long long stride = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred() || read_number(args[0], prompt_name, &prompt) < 0 ||
        read_number(args[0], expected_name, &expected) < 0 ||
        read_number(args[0], private_name, &own) < 0) {
        return NULL;
    }
    PyObject *keys = PyObject_GetAttr(args[0], keys_name);
    freed = keys == NULL ? -1 : loads_count_keys(self, keys, 0);
    Py_XDECREF(keys);
    if (freed < 0) {
        return NULL;
    }
    self->prompt_tokens -= prompt;
    self->active_requests--;
    self->expected_blocks -= expected;
    self->active_blocks -= own + stride * freed;
    Py_RETURN_NONE;
}

static PyObject *loads_correct(Loads *self, PyObject *const *args, Py_ssize_t nargs) {
    long long given[4];
    if (check_count("correct", nargs, 4) < 0) {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        given[i] = PyLong_AsLongLong(args[i]);
        if (given[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    long long requests = given[0], blocks = given[1], tokens = given[2];
    self->active_requests += requests - self->unseen_requests;
    self->active_blocks += blocks - self->unseen_blocks;
    self->prompt_tokens += (blocks - self->unseen_blocks) * given[3];
    self->prefill_tokens += tokens - self->unseen_tokens;
    self->unseen_requests = requests;
    self->unseen_blocks = blocks;
    self->unseen_tokens = tokens;
    Py_RETURN_NONE;
}

static PyObject *loads_wait(Loads *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"ms_per_token", "now", "step_tokens", NULL};
    double rate, now, step = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "dd|d", names, &rate, &now, &step)) {
        return NULL;
    }
    return PyFloat_FromDouble(self->prefill_tokens ? loads_wait_ms(self, rate, now, step) : 0.0);
}

static PyObject *loads_shared(Loads *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"keys", "stride", "overlap", NULL};
    PyObject *keys;
    long long stride, overlap;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OLL", names, &keys, &stride, &overlap)) {
        return NULL;
    }
    if (stride < 1) {
        return PyErr_Format(PyExc_ValueError, "a stride is at least 1, not %lld", stride);
    }
    keys = PySequence_Tuple(keys);
    long long blocks = keys == NULL ? -1 : loads_shared_blocks(self, keys, stride, overlap);
    Py_XDECREF(keys);
    return blocks < 0 ? NULL : PyLong_FromLongLong(blocks);
}

static PyObject *loads_booked(Loads *self, void *which) {
    const char *name = which;
    return PyLong_FromLongLong(name[0] == 'r'   ? self->active_requests - self->unseen_requests
                               : name[0] == 'b' ? self->active_blocks - self->unseen_blocks
                                                : self->prefill_tokens - self->unseen_tokens);
}

#define NUMBER(name) { #name, T_LONGLONG, offsetof(Loads, name), 0, NULL }

static PyMemberDef members[] = {
    {"worker", T_OBJECT_EX, offsetof(Loads, worker), READONLY, NULL},
    {"prefilling", T_OBJECT_EX, offsetof(Loads, prefilling), READONLY, NULL},
    {"shared", T_OBJECT_EX, offsetof(Loads, shared), READONLY, NULL},
    {"progress_s", T_DOUBLE, offsetof(Loads, progress_s), 0, NULL},
    NUMBER(prefill_tokens),
    NUMBER(prompt_tokens),
    NUMBER(active_requests),
    NUMBER(active_blocks),
    NUMBER(expected_blocks),
    NUMBER(silent),
    NUMBER(unseen_requests),
    NUMBER(unseen_blocks),
    NUMBER(unseen_tokens),
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"booked_requests", (getter)loads_booked, NULL, NULL, "requests"},
    {"booked_blocks", (getter)loads_booked, NULL, NULL, "blocks"},
    {"booked_tokens", (getter)loads_booked, NULL, NULL, "tokens"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)(void (*)(void))loads_begin, METH_FASTCALL, "Take a booking in."},
    {"end_prefill", (PyCFunction)loads_end_prefill, METH_O, "Take one out of the backlog."},
    {"grow", (PyCFunction)(void (*)(void))loads_grow, METH_FASTCALL, "Take more blocks."},
    {"end", (PyCFunction)(void (*)(void))loads_end, METH_FASTCALL, "Let a booking go."},
    {"correct", (PyCFunction)(void (*)(void))loads_correct, METH_FASTCALL,
     "Count load that nobody booked."},
    {"wait_ms", (PyCFunction)(void (*)(void))loads_wait, METH_VARARGS | METH_KEYWORDS,
     "When the backlog will be prefilled."},
    {"shared_blocks", (PyCFunction)(void (*)(void))loads_shared, METH_VARARGS | METH_KEYWORDS,
     "How many blocks of a prefix are in use."},
    {"hold", (PyCFunction)loads_hold, METH_O, "Take a reference on each key."},
    {"release", (PyCFunction)loads_release, METH_O, "Give references back."},
    {NULL, NULL, 0, NULL},
};

static PyObject *loads_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"worker", NULL};
    PyObject *worker;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "U", names, &worker)) {
        return NULL;
    }
    Loads *self = (Loads *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->worker = Py_NewRef(worker);
    self->prefilling = PyDict_New();
    self->shared = PyDict_New();
    if (self->prefilling == NULL || self->shared == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void loads_dealloc(Loads *self) {
    Py_XDECREF(self->worker);
    Py_XDECREF(self->prefilling);
    Py_XDECREF(self->shared);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject loads_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Loads",
    .tp_doc = "The live sums of one worker.",
    .tp_basicsize = sizeof(Loads),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = loads_new,
    .tp_dealloc = (destructor)loads_dealloc,
    .tp_members = members,
    .tp_getset = getters,
    .tp_methods = methods,
};
