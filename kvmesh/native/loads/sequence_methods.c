/* ActiveSequences as Python sees it. */
#include "base/arguments.h"
#include "base/shell.h"
#include "loads/sequences.h"

#include <math.h>

static PyObject *prompt_name, *uncached_name, *expected_name, *keys_name, *streams_name,
    *hashes_name, *turn_name;

int sequence_methods_ready(void) {
    struct {
        PyObject **place;
        const char *name;
    } names[] = {
        {&prompt_name, "prompt_tokens"},
        {&uncached_name, "uncached_tokens"},
        {&expected_name, "expected_output_tokens"},
        {&keys_name, "keys"},
        {&streams_name, "streams"},
        {&hashes_name, "hashes"},
        {&turn_name, "turn"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *names[i].place = PyUnicode_InternFromString(names[i].name);
        if (*names[i].place == NULL) {
            return -1;
        }
    }
    return 0;
}

static int read_time(PyObject *object, double *time) {
    *time = PyFloat_AsDouble(object);
    return *time == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int read_attribute(PyObject *object, PyObject *name, long long *amount) {
    PyObject *value = PyObject_GetAttr(object, name);
    int failed = value == NULL ? -1 : read_amount(value, amount);
    Py_XDECREF(value);
    return failed;
}

static int read_flag(PyObject *object, PyObject *name, int *flag) {
    PyObject *value = PyObject_GetAttr(object, name);
    *flag = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return *flag < 0 ? -1 : 0;
}

/* Read a core.workers.loads.Demand; -1 with an error set. `keys_free` and `hashes` are the caller's
 * to let go either way.
 */
static int read_demand(PyObject *given, DemandC *demand, Keys *keys) {
    PyObject *held = PyObject_GetAttr(given, keys_name);
    int failed = held == NULL ? -1 : keys_read(keys, held);
    Py_XDECREF(held);
    if (failed || read_attribute(given, prompt_name, &demand->prompt_tokens) < 0 ||
        read_attribute(given, uncached_name, &demand->uncached_tokens) < 0 ||
        read_attribute(given, expected_name, &demand->expected_output_tokens) < 0 ||
        read_flag(given, streams_name, &demand->streams) < 0 ||
        read_flag(given, turn_name, &demand->turn) < 0) {
        return -1;
    }
    demand->hashes = PyObject_GetAttr(given, hashes_name);
    if (demand->hashes == Py_None) {
        Py_CLEAR(demand->hashes);
    }
    demand->keys = (SharingKeys){keys->at, keys->count, 1};
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *call_add(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *keywords) {
    static const char *const names[] = {"request_id", "worker", "demand", "now", "owner"};
    PyObject *given[5];
    double now;
    if (sort_arguments("add", names, 5, 4, args, nargs, keywords, given) < 0 ||
        read_time(given[3], &now) < 0) {
        return NULL;
    }
    if (sequences_find(self, given[0]) != NULL) {
        Py_RETURN_FALSE;
    }
    Keys keys = {.at = keys.own};
    DemandC demand = {.owner = given[4]};
    Booking *booking = NULL;
    if (!PyErr_Occurred() && read_demand(given[2], &demand, &keys) == 0) {
        booking = sequences_book(self, given[0], given[1], &demand, now);
    }
    keys_free(&keys);
    Py_XDECREF(demand.hashes);
    Py_XDECREF(booking);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(booking != NULL);
}

/* Return a live booking, a new reference; NULL without an error: there is none. */
static Booking *hold(Sequences *self, PyObject *request_id) {
    return (Booking *)Py_XNewRef(sequences_find(self, request_id));
}

/* Return a booking that something was done to, or None where `done` says that nothing was. */
static PyObject *booking_or_none(Booking *booking, int done) {
    if (done > 0) {
        return (PyObject *)booking;
    }
    Py_XDECREF(booking);
    if (done < 0 || PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *call_first_token(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *keywords) {
    static const char *const names[] = {"request_id", "now"};
    PyObject *given[2];
    double now;
    if (sort_arguments("first_token", names, 2, 2, args, nargs, keywords, given) < 0 ||
        read_time(given[1], &now) < 0) {
        return NULL;
    }
    Booking *booking = hold(self, given[0]);
    return booking_or_none(booking, booking != NULL && sequences_first_token(self, booking, now));
}

static PyObject *call_finish(Sequences *self, PyObject *request_id) {
    Booking *booking = hold(self, request_id);
    return booking_or_none(booking, booking == NULL ? 0 : sequences_finish(self, booking));
}

static PyObject *call_grow(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *keywords) {
    static const char *const names[] = {"request_id", "output_tokens", "now"};
    PyObject *given[3];
    long long output_tokens;
    double now;
    if (sort_arguments("grow", names, 3, 3, args, nargs, keywords, given) < 0 ||
        read_amount(given[1], &output_tokens) < 0 || read_time(given[2], &now) < 0) {
        return NULL;
    }
    Booking *booking = sequences_find(self, given[0]);
    if (booking != NULL) {
        sequences_grow(self, booking, output_tokens, now);
    }
    return booking == NULL && PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_foresee(Sequences *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs,
                              PyObject *keywords) {
    static const char *const names[] = {"booking", "blocks"};
    PyObject *given[2];
    long long blocks;
    if (sort_arguments("foresee", names, 2, 2, args, nargs, keywords, given) < 0 ||
        read_amount(given[1], &blocks) < 0) {
        return NULL;
    }
    if (!Py_IS_TYPE(given[0], &booking_type)) {
        return PyErr_Format(PyExc_TypeError, "a booking is a kvmesh._native.Booking, not %.100R",
                            given[0]);
    }
    sequences_foresee((Booking *)given[0], within(-MOST_TOKENS, blocks, MOST_TOKENS));
    Py_RETURN_NONE;
}

static int ask_speed(void *context, Loads *loads, double *ms_per_token) {
    PyObject *speed = PyObject_CallOneArg(context, loads->worker);
    int failed = speed == NULL ? -1 : read_time(speed, ms_per_token);
    Py_XDECREF(speed);
    return failed;
}

static PyObject *call_settle(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *keywords) {
    static const char *const names[] = {"now", "ms_per_token"};
    PyObject *given[2];
    double now;
    if (sort_arguments("settle", names, 2, 2, args, nargs, keywords, given) < 0 ||
        read_time(given[0], &now) < 0 || sequences_settle(self, now, ask_speed, given[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *call_loads(Sequences *self, PyObject *worker) {
    return Py_XNewRef((PyObject *)sequences_loads(self, worker));
}

static PyObject *call_correct(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *keywords) {
    static const char *const names[] = {"worker", "requests", "blocks", "prefill_tokens"};
    PyObject *given[4];
    long long amounts[3];
    if (sort_arguments("correct", names, 4, 4, args, nargs, keywords, given) < 0) {
        return NULL;
    }
    for (int i = 0; i < 3; i++) {
        if (read_amount(given[i + 1], amounts + i) < 0) {
            return NULL;
        }
        amounts[i] = within(-MOST_TOKENS, amounts[i], MOST_TOKENS);
    }
    Loads *loads = sequences_loads(self, given[0]);
    if (loads == NULL) {
        return NULL;
    }
    loads_correct(loads, amounts[0], amounts[1], amounts[2], self->block_size);
    Py_RETURN_NONE;
}

static int check_size(const char *name, long long size, long long most) {
    if (size < 1 || size > most) {
        PyErr_Format(PyExc_ValueError, "%s is %lld, it must be from 1 to %lld", name, size, most);
        return -1;
    }
    return 0;
}

static PyObject *call_resize(Sequences *self, PyObject *given) {
    long long block_size;
    PyObject *key, *value;
    Py_ssize_t place = 0;
    if (read_amount(given, &block_size) < 0 ||
        check_size("block_size", block_size, MOST_BLOCK_SIZE) < 0) {
        return NULL;
    }
    while (PyDict_Next(self->loads, &place, &key, &value)) {
        loads_correct((Loads *)value, 0, 0, 0, self->block_size);
    }
    place = 0;
    while (PyDict_Next(self->bookings, &place, &key, &value)) {
        if (Py_IS_TYPE(value, &booking_type)) {
            sequences_foresee((Booking *)value, 0);
        }
    }
    self->block_size = block_size;
    Py_RETURN_NONE;
}

static PyObject *call_renew(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *keywords) {
    static const char *const names[] = {"request_ids", "now"};
    PyObject *given[2], *next;
    double now;
    if (sort_arguments("renew", names, 2, 2, args, nargs, keywords, given) < 0 ||
        read_time(given[1], &now) < 0) {
        return NULL;
    }
    PyObject *iterator = PyObject_GetIter(given[0]);
    while (iterator != NULL && (next = PyIter_Next(iterator)) != NULL) {
        Booking *booking = sequences_find(self, next);
        if (booking != NULL && now > booking->renewed_s) {
            booking->renewed_s = now;
        }
        Py_DECREF(next);
        if (PyErr_Occurred()) {
            break;
        }
    }
    Py_XDECREF(iterator);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_renew_owner(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *keywords) {
    static const char *const names[] = {"owner", "now"};
    PyObject *given[2];
    double now;
    if (sort_arguments("renew_owner", names, 2, 2, args, nargs, keywords, given) < 0 ||
        read_time(given[1], &now) < 0) {
        return NULL;
    }
    PyObject *owner = read_text("an owner", given[0]);
    if (owner == NULL) {
        return NULL;
    }
    sequences_renew_owner(self, owner, now);
    Py_DECREF(owner);
    Py_RETURN_NONE;
}

/* Which bookings are meant: those of an owner, at a worker, whose answers grow unseen, or without a life
 * sign since.
 */
typedef struct {
    PyObject *owner;
    const Loads *loads;
    double limit_s;
    int unseen;
} Meant;

static int is_meant(const Booking *booking, const Meant *meant) {
    if (meant->owner != NULL) {
        return booking->owner == meant->owner ||
               PyUnicode_Compare(booking->owner, meant->owner) == 0;
    }
    if (meant->unseen) {
        return !booking->streams && !booking->prefilling && !booking->output_tokens;
    }
    return meant->loads != NULL ? booking->loads == meant->loads
                                : booking->renewed_s < meant->limit_s;
}

/* Return the bookings that are meant as a list, oldest first; NULL with an error set. */
static PyObject *find_all(Sequences *self, const Meant *meant) {
    PyObject *found = PyList_New(0), *key, *value;
    Py_ssize_t place = 0;
    while (found != NULL && PyDict_Next(self->bookings, &place, &key, &value)) {
        if (Py_IS_TYPE(value, &booking_type) && is_meant((Booking *)value, meant) &&
            PyList_Append(found, value) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

/* Release them, and count them; NULL with an error set. */
static PyObject *release_all(Sequences *self, const Meant *meant, long long *counter) {
    PyObject *gone = find_all(self, meant);
    for (Py_ssize_t i = 0; gone != NULL && i < PyList_GET_SIZE(gone); i++) {
        if (sequences_finish(self, (Booking *)PyList_GET_ITEM(gone, i)) < 0) {
            Py_CLEAR(gone);
        }
    }
    *counter += gone == NULL ? 0 : PyList_GET_SIZE(gone);
    return gone;
}

static PyObject *call_expire(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *keywords) {
    static const char *const names[] = {"now"};
    PyObject *given[1];
    double now;
    if (sort_arguments("expire", names, 1, 1, args, nargs, keywords, given) < 0 ||
        read_time(given[0], &now) < 0) {
        return NULL;
    }
    return release_all(self, &(Meant){.limit_s = now - self->lease_s}, &self->expired);
}

static PyObject *call_remove_worker(Sequences *self, PyObject *worker) {
    static PyObject *remove_name;
    PyObject *name = read_text("a worker", worker);
    if (name == NULL || (remove_name == NULL &&
                         (remove_name = PyUnicode_InternFromString("remove")) == NULL)) {
        Py_XDECREF(name);
        return NULL;
    }
    PyObject *loads = Py_XNewRef(PyDict_GetItemWithError(self->loads, name));
    PyObject *gone = loads == NULL ? PyList_New(0)
                                   : release_all(self, &(Meant){.loads = (Loads *)loads},
                                                 &self->dropped_with_worker);
    if (gone != NULL && loads != NULL &&
        ((PyDict_GetItem(self->silent, name) != NULL && PyDict_DelItem(self->silent, name) < 0) ||
         (PyDict_GetItem(self->loads, name) != NULL && PyDict_DelItem(self->loads, name) < 0))) {
        Py_CLEAR(gone);
    }
    Py_XDECREF(loads);
    PyObject *removed =
        gone == NULL ? NULL : PyObject_CallMethodOneArg(self->turns, remove_name, name);
    if (removed == NULL) {
        Py_CLEAR(gone);
    } else {
        self->generation++;
    }
    Py_XDECREF(removed);
    Py_DECREF(name);
    return gone;
}

static PyObject *call_remove_owner(Sequences *self, PyObject *given) {
    PyObject *owner = read_text("an owner", given);
    PyObject *gone = owner == NULL ? NULL
                                   : release_all(self, &(Meant){.owner = owner},
                                                 &self->dropped_with_owner);
    Py_XDECREF(owner);
    return gone;
}

static PyObject *call_owned(Sequences *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *keywords) {
    static const char *const names[] = {"owner"};
    PyObject *given[1];
    if (sort_arguments("owned", names, 1, 0, args, nargs, keywords, given) < 0) {
        return NULL;
    }
    PyObject *owner = given[0] == NULL ? PyUnicode_FromStringAndSize("", 0)
                                       : read_text("an owner", given[0]);
    PyObject *owned = owner == NULL ? NULL : find_all(self, &(Meant){.owner = owner});
    Py_XDECREF(owner);
    return owned;
}

static PyObject *call_unseen(Sequences *self, PyObject *Py_UNUSED(none)) {
    return self->unstreamed > 0 ? find_all(self, &(Meant){.unseen = 1}) : PyList_New(0);
}

static PyObject *call_statistics(Sequences *self, PyObject *Py_UNUSED(nothing)) {
    long long prefill_tokens = 0, active_blocks = 0;
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(self->loads, &place, &key, &value)) {
        prefill_tokens += ((Loads *)value)->prefill_tokens;
        active_blocks += ((Loads *)value)->active_blocks;
    }
    return PyObject_CallFunction(self->statistics, "nnLLLLL", PyDict_GET_SIZE(self->loads),
                                 PyDict_GET_SIZE(self->bookings), prefill_tokens, active_blocks,
                                 self->expired, self->dropped_with_worker,
                                 self->dropped_with_owner);
}

static PyObject *sequences_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"block_size", "lease_s", "turns", "statistics", NULL};
    PyObject *block_size, *turns = NULL, *statistics = NULL;
    long long size;
    double lease_s = 60.0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$dOO", names, &block_size, &lease_s, &turns,
                                     &statistics) ||
        read_amount(block_size, &size) < 0 ||
        check_size("block_size", size, MOST_BLOCK_SIZE) < 0) {
        return NULL;
    }
    if (turns == NULL || statistics == NULL) {
        PyErr_SetString(PyExc_TypeError, "bookings need what makes turns and statistics");
        return NULL;
    }
    Sequences *self = (Sequences *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->block_size = size;
    self->lease_s = lease_s;
    self->settled_s = -INFINITY;
    self->statistics = Py_NewRef(statistics);
    self->bookings = PyDict_New();
    self->loads = PyDict_New();
    self->silent = PyDict_New();
    self->arrivals = (Arrivals *)arrivals_type.tp_alloc(&arrivals_type, 0);
    self->turns = PyObject_CallNoArgs(turns);
    if (self->bookings == NULL || self->loads == NULL || self->silent == NULL ||
        self->arrivals == NULL || self->turns == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int sequences_traverse(Sequences *self, visitproc visit, void *arg) {
    Py_VISIT(self->bookings);
    Py_VISIT(self->loads);
    Py_VISIT(self->silent);
    Py_VISIT(self->turns);
    Py_VISIT(self->statistics);
    return 0;
}

/* Nothing becomes NULL: who still holds it may go on. */
static int sequences_clear(Sequences *self) {
    Py_SETREF(self->turns, Py_NewRef(Py_None));
    Py_SETREF(self->statistics, Py_NewRef(Py_None));
    PyDict_Clear(self->bookings);
    return 0;
}

static void sequences_dealloc(Sequences *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->bookings);
    Py_XDECREF(self->silent);
    Py_XDECREF(self->loads);
    Py_XDECREF(self->turns);
    Py_XDECREF(self->arrivals);
    Py_XDECREF(self->statistics);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef members[] = {
    {"bookings", T_OBJECT_EX, offsetof(Sequences, bookings), READONLY, NULL},
    {"turns", T_OBJECT_EX, offsetof(Sequences, turns), READONLY, NULL},
    {"arrivals", T_OBJECT_EX, offsetof(Sequences, arrivals), READONLY, NULL},
    {"block_size", T_LONGLONG, offsetof(Sequences, block_size), READONLY, NULL},
    {"generation", T_LONGLONG, offsetof(Sequences, generation), READONLY, NULL},
    {"lease_s", T_DOUBLE, offsetof(Sequences, lease_s), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    METHOD_O("loads", call_loads),
    METHOD_KEYWORDS("add", call_add),
    METHOD_KEYWORDS("first_token", call_first_token),
    METHOD_KEYWORDS("settle", call_settle),
    METHOD_KEYWORDS("grow", call_grow),
    METHOD_KEYWORDS("foresee", call_foresee),
    METHOD_O("finish", call_finish),
    METHOD_KEYWORDS("correct", call_correct),
    METHOD_O("resize", call_resize),
    METHOD_KEYWORDS("renew", call_renew),
    METHOD_KEYWORDS("renew_owner", call_renew_owner),
    METHOD_KEYWORDS("expire", call_expire),
    METHOD_O("remove_worker", call_remove_worker),
    METHOD_O("remove_owner", call_remove_owner),
    METHOD_KEYWORDS("owned", call_owned),
    METHOD_NOARGS("unseen", call_unseen),
    METHOD_NOARGS("statistics", call_statistics),
    {NULL, NULL, 0, NULL},
};

PyTypeObject sequences_type = {
    GC_TYPE("ActiveSequences", Sequences, sequences),
    .tp_clear = (inquiry)sequences_clear,
    .tp_members = members,
    .tp_methods = methods,
};
