/* ActiveSequences as Python sees it. */
#include "base/arrays.h"
#include "base/names.h"
#include "base/shell.h"
#include "loads/sequences.h"

#include <math.h>

/* Read a core.members.loads.Demand; -1 with an error set. `keys` and `hashes` are the caller's
 * to let go either way.
 */
static int read_demand(PyObject *given, DemandC *demand, GivenU64s *keys) {
    PyObject *held = PyObject_GetAttr(given, interned.keys);
    int failed = held == NULL ? -1 : u64s_read(keys, held);
    Py_XDECREF(held);
    TRY(failed);
    TRY(read_attribute(given, interned.prompt_tokens, 'N', &demand->prompt_tokens));
    TRY(read_attribute(given, interned.uncached_tokens, 'N', &demand->uncached_tokens));
    TRY(read_attribute(given, interned.expected_output_tokens, 'N',
                       &demand->expected_output_tokens));
    TRY(read_attribute(given, interned.streams, 'p', &demand->streams));
    TRY(read_attribute(given, interned.turn, 'p', &demand->turn));
    TRY(read_attribute(given, interned.keep_s, 'N', &demand->keep_s));
    demand->hashes = PyObject_GetAttr(given, interned.hashes);
    if (demand->hashes == Py_None) {
        Py_CLEAR(demand->hashes);
    }
    demand->keys = (SharingKeys){keys->at, keys->count, 1};
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *call_add(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *request_id, *worker, *demanded, *owner = NULL;
    double now;
    TRY_OR_NULL(READ("add", "OOOd|O", "request_id worker demand now owner", &request_id, &worker,
                     &demanded, &now, &owner));
    if (sequences_find(self, request_id) != NULL) {
        Py_RETURN_FALSE;
    }
    GivenU64s keys = {.at = NULL};
    DemandC demand = {.owner = owner};
    Booking *booking = NULL;
    if (!PyErr_Occurred() && read_demand(demanded, &demand, &keys) == 0) {
        booking = sequences_book(self, request_id, worker, &demand, now);
    }
    u64s_close(&keys);
    XDECREF_ALL(demand.hashes, booking);
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

static PyObject *call_first_token(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *request_id;
    double now;
    TRY_OR_NULL(READ("first_token", "Od", "request_id now", &request_id, &now));
    Booking *booking = hold(self, request_id);
    return booking_or_none(booking, booking != NULL && sequences_first_token(self, booking, now));
}

static PyObject *call_finish(Sequences *self, PyObject *request_id) {
    Booking *booking = hold(self, request_id);
    return booking_or_none(booking, booking == NULL ? 0 : sequences_finish(self, booking));
}

static PyObject *call_grow(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *request_id;
    long long output_tokens;
    double now;
    TRY_OR_NULL(READ("grow", "ONd", "request_id output_tokens now", &request_id, &output_tokens,
                     &now));
    Booking *booking = sequences_find(self, request_id);
    if (booking != NULL) {
        sequences_grow(self, booking, output_tokens, now);
    }
    return booking == NULL && PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_foresee(Sequences *Py_UNUSED(self), NAMED_ARGUMENTS) {
    Booking *booking;
    long long blocks;
    TRY_OR_NULL(READ("foresee", "!N", "booking blocks", &booking_type, &booking, &blocks));
    sequences_foresee(booking, within(-MOST_TOKENS, blocks, MOST_TOKENS));
    Py_RETURN_NONE;
}

static int ask_speed(void *context, Loads *loads, double *ms_per_token) {
    PyObject *speed = PyObject_CallOneArg(context, loads->worker);
    int failed = speed == NULL ? -1 : read_double(speed, ms_per_token);
    Py_XDECREF(speed);
    return failed;
}

static PyObject *call_settle(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *ms_per_token;
    double now;
    TRY_OR_NULL(READ("settle", "dO", "now ms_per_token", &now, &ms_per_token));
    return none_or_null(sequences_settle(self, now, ask_speed, ms_per_token));
}

static PyObject *call_loads(Sequences *self, PyObject *worker) {
    return Py_XNewRef((PyObject *)sequences_loads(self, worker));
}

static PyObject *call_correct(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *worker;
    long long amounts[3];
    TRY_OR_NULL(READ("correct", "ONNN", "worker requests blocks prefill_tokens", &worker, amounts,
                     amounts + 1, amounts + 2));
    for (int i = 0; i < 3; i++) {
        amounts[i] = within(-MOST_TOKENS, amounts[i], MOST_TOKENS);
    }
    Loads *loads = sequences_loads(self, worker);
    NEED_OR_NULL(loads);
    loads_correct(loads, amounts[0], amounts[1], amounts[2], self->block_size);
    Py_RETURN_NONE;
}

static int check_size(const char *name, long long size, long long most) {
    REFUSE(size < 1 || size > most, PyExc_ValueError, "%s is %lld, it must be from 1 to %lld", name,
           size, most);
    return 0;
}

static PyObject *call_resize(Sequences *self, PyObject *given) {
    long long block_size;
    PyObject *key, *value;
    Py_ssize_t place = 0;
    TRY_OR_NULL(read_amount(given, &block_size));
    TRY_OR_NULL(check_size("block_size", block_size, MOST_BLOCK_SIZE));
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

static PyObject *call_renew(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *request_ids, *next;
    double now;
    TRY_OR_NULL(READ("renew", "Od", "request_ids now", &request_ids, &now));
    PyObject *iterator = PyObject_GetIter(request_ids);
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

static PyObject *call_renew_owner(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *given, *owner;
    double now;
    TRY_OR_NULL(READ("renew_owner", "Od", "owner now", &given, &now));
    NEED_OR_NULL(owner = read_text("an owner", given));
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

static PyObject *call_expire(Sequences *self, NAMED_ARGUMENTS) {
    double now;
    TRY_OR_NULL(READ("expire", "d", "now", &now));
    return release_all(self, &(Meant){.limit_s = now - self->lease_s}, &self->expired);
}

static PyObject *call_remove_worker(Sequences *self, PyObject *worker) {
    PyObject *name = read_text("a worker", worker);
    NEED_OR_NULL(name);
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
    if (gone != NULL && PyDict_GetItem(self->turns, name) != NULL &&
        PyDict_DelItem(self->turns, name) < 0) {
        Py_CLEAR(gone);
    }
    self->generation += gone != NULL;
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

static PyObject *call_owned(Sequences *self, NAMED_ARGUMENTS) {
    PyObject *given = NULL;
    TRY_OR_NULL(READ("owned", "|O", "owner", &given));
    PyObject *owner = given == NULL ? PyUnicode_FromStringAndSize("", 0)
                                    : read_text("an owner", given);
    PyObject *owned = owner == NULL ? NULL : find_all(self, &(Meant){.owner = owner});
    Py_XDECREF(owner);
    return owned;
}

RETURNS(Sequences, call_unseen, self->unstreamed > 0 ? find_all(self, &(Meant){.unseen = 1}) :
        PyList_New(0))

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

static PyObject *sequences_new(NEW_ARGUMENTS) {
    PyObject *statistics;
    long long size;
    double lease_s = 60.0;
    TRY_OR_NULL(READ_NEW("ActiveSequences", "N$O|d", "block_size statistics lease_s", &size,
                         &statistics, &lease_s));
    TRY_OR_NULL(check_size("block_size", size, MOST_BLOCK_SIZE));
    Sequences *self = (Sequences *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->block_size = size;
    self->lease_s = lease_s;
    self->settled_s = -INFINITY;
    self->statistics = Py_NewRef(statistics);
    self->bookings = PyDict_New();
    self->loads = PyDict_New();
    self->silent = PyDict_New();
    self->arrivals = (Arrivals *)arrivals_type.tp_alloc(&arrivals_type, 0);
    self->turns = PyDict_New();
    return made_or_null(self);
}

TRAVERSE(Sequences, sequences, bookings, loads, silent, turns, statistics)

/* Nothing becomes NULL: who still holds it may go on. */
static int sequences_clear(Sequences *self) {
    Py_SETREF(self->statistics, Py_NewRef(Py_None));
    PyDict_Clear(self->bookings);
    return 0;
}

GC_DEALLOC(Sequences, sequences, bookings, silent, loads, turns, arrivals, statistics)

MEMBERS(members,
    FIELDS(Sequences, T_OBJECT_EX, READONLY, bookings, turns, arrivals)
    FIELDS(Sequences, T_LONGLONG, READONLY, block_size, generation)
    FIELDS(Sequences, T_DOUBLE, READONLY, lease_s))

METHODS(methods,
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
    METHOD_NOARGS("statistics", call_statistics))

PyTypeObject sequences_type = {
    GC_TYPE("ActiveSequences", Sequences, sequences),
    .tp_clear = (inquiry)sequences_clear,
    .tp_members = members, .tp_methods = methods,
};
