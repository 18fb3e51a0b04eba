/* Ring: the last records, and what of them is still to be read. */
#include "base/shell.h"
#include "insight/records.h"

enum { MAX_ENDED = 1 << 14 }; /* ends that wait to be read */

static Record **slot_of(const Ring *self, long long number) {
    return &self->slots[(number - 1) % self->capacity];
}

static long long oldest_of(const Ring *self) {
    return self->number - self->count + 1;
}

static int is_here(const Ring *self, const Record *record) {
    return record->number >= oldest_of(self) && record->number <= self->number &&
           *slot_of(self, record->number) == record;
}

/* Keep the chosen candidate alone; -1 with an error set. */
static int thin(Ring *self, Record *record) {
    if (record->kept_candidates == 0) {
        return 0;
    }
    record->kept_candidates = 0;
    record_forget_candidates(record);
    if (record->decision == NULL) {
        return 0;
    }
    PyObject *whole = Py_NewRef(record->decision);
    PyObject *thinned = PyObject_CallOneArg(self->thin, whole);
    if (thinned != NULL && record->decision == whole) {
        Py_SETREF(record->decision, Py_NewRef(thinned));
    }
    Py_DECREF(whole);
    Py_XDECREF(thinned);
    return thinned == NULL ? -1 : 0;
}

static int bound_candidates(Ring *self) {
    if (self->whole < oldest_of(self) - 1) {
        self->whole = oldest_of(self) - 1;
    }
    while (self->candidates > self->max_candidates && self->whole < self->number) {
        Record *oldest = (Record *)Py_NewRef(*slot_of(self, ++self->whole));
        self->candidates -= oldest->kept_candidates;
        int failed = thin(self, oldest) < 0; /* may run anything, and append here */
        Py_DECREF(oldest);
        if (failed) {
            return -1;
        }
        if (self->whole < oldest_of(self) - 1) {
            self->whole = oldest_of(self) - 1;
        }
    }
    return 0;
}

/* Take the oldest out of the ring; the caller owns it then. Runs nothing of anybody. */
static Record *evict(Ring *self) {
    Record **slot = slot_of(self, oldest_of(self)), *oldest = *slot;
    long long number = oldest_of(self);
    *slot = NULL;
    self->count--;
    self->candidates -= oldest->kept_candidates;
    if (number > self->cursor) {
        self->cursor = number;
        if (oldest->waiting_blocks) {
            self->waiting_blocks -= oldest->waiting_blocks;
            oldest->waiting_blocks = 0;
            self->dropped++;
        }
    }
    return oldest;
}

int ring_append(Ring *self, Record *record) {
    Record *oldest = self->count == self->capacity ? evict(self) : NULL;
    record->number = ++self->number;
    record->version = ++self->version;
    self->count++;
    *slot_of(self, record->number) = (Record *)Py_NewRef(record);
    self->candidates += record->kept_candidates;
    int waits = self->waiting_blocks < self->max_waiting_blocks;
    record->waiting_blocks = waits ? 1 + record->block_count : 0;
    self->waiting_blocks += record->waiting_blocks;
    self->dropped += !waits;
    if (!waits) {
        record_forget_hashes(record);
    }
    if (oldest != NULL) {
        record_forget_hashes(oldest);
        Py_DECREF(oldest); /* may run anything, and append here */
    }
    return bound_candidates(self);
}

static int ring_may_weigh_all(Ring *self, double now) {
    long long second = now > -1e15 && now < 1e15 ? (long long)now : 0;
    if (second != self->second) {
        self->second = second;
        self->asked = 0;
    }
    return ++self->asked <= self->whole_per_s;
}

int ring_again(Ring *self, Record *record, long long kept_before) {
    record->attempts++;
    record->version = ++self->version;
    if (!is_here(self, record)) {
        return thin(self, record);
    }
    self->candidates += record->kept_candidates - kept_before;
    if (self->whole > record->number - 1) {
        self->whole = record->number - 1;
    }
    return bound_candidates(self);
}

void ring_ended(Ring *self, Record *record, int state, int status, double now) {
    record->state = (unsigned char)state;
    record->status = status;
    record->ended_s = now;
    record->version = ++self->version;
    if (self->ended_count == MAX_ENDED) {
        self->dropped_ends++;
        return;
    }
    Py_ssize_t place = (self->ended_head + self->ended_count) % MAX_ENDED;
    self->ended[place] = (Record *)Py_NewRef(record);
    self->ended_count++;
}

static Record *ring_next_decided(Ring *self) {
    while (self->cursor < self->number) {
        Record *record = *slot_of(self, ++self->cursor);
        if (record->waiting_blocks) {
            self->waiting_blocks -= record->waiting_blocks;
            record->waiting_blocks = 0;
            return (Record *)Py_NewRef(record);
        }
    }
    return NULL;
}

static Record *ring_next_ended(Ring *self) {
    if (self->ended_count == 0 || self->ended[self->ended_head]->number > self->cursor) {
        return NULL;
    }
    Record *record = self->ended[self->ended_head];
    self->ended[self->ended_head] = NULL;
    self->ended_head = (self->ended_head + 1) % MAX_ENDED;
    self->ended_count--;
    return record;
}

static PyObject *may_weigh_method(Ring *self, PyObject *given) {
    double now;
    return read_double(given, &now) < 0 ? NULL : PyBool_FromLong(ring_may_weigh_all(self, now));
}

int state_from(PyObject *name) {
    for (int state = 0; state < STATES && PyUnicode_Check(name); state++) {
        if (PyUnicode_CompareWithASCIIString(name, state_names[state]) == 0) {
            return state;
        }
    }
    return set_error(PyExc_ValueError, "%R is no state of a request", name);
}

static PyObject *none_for_null(Record *record) {
    return record == NULL ? Py_NewRef(Py_None) : (PyObject *)record;
}

RETURNS(Ring, next_decided_method, none_for_null(ring_next_decided(self)))

RETURNS(Ring, next_ended_method, none_for_null(ring_next_ended(self)))

RETURNS(Ring, waiting_method, Py_BuildValue("Ln", self->number - self->cursor, self->ended_count))

static PyObject *find_method(Ring *self, PyObject *name) {
    REFUSE_OR_NULL(!PyBytes_Check(name), PyExc_TypeError, "a request id is bytes, not %.80s",
                   Py_TYPE(name)->tp_name);
    Py_ssize_t size = PyBytes_GET_SIZE(name);
    for (long long number = self->number; number >= oldest_of(self); number--) {
        Record *record = *slot_of(self, number);
        if (PyBytes_GET_SIZE(record->request_id) == size &&
            memcmp(PyBytes_AS_STRING(record->request_id), PyBytes_AS_STRING(name),
                   (size_t)size) == 0) {
            return Py_NewRef(record);
        }
    }
    Py_RETURN_NONE;
}

/* Return the records from the newest on that `version` is older than, `limit` at most. */
static PyObject *list_newest(const Ring *self, long long version, long long limit) {
    PyObject *found = PyList_New(0);
    for (long long number = self->number; found != NULL && limit > 0 && number >= oldest_of(self);
         number--) {
        Record *record = *slot_of(self, number);
        if (record->version > version) {
            limit--;
            if (PyList_Append(found, (PyObject *)record) < 0) {
                Py_CLEAR(found);
            }
        }
    }
    return found;
}

static PyObject *latest_method(Ring *self, PyObject *given) {
    long long limit = PyLong_AsLongLong(given);
    return limit == -1 && PyErr_Occurred() ? NULL : list_newest(self, -1, limit);
}

static PyObject *changed_method(Ring *self, PyObject *given) {
    long long version = PyLong_AsLongLong(given);
    return version == -1 && PyErr_Occurred() ? NULL : list_newest(self, version, self->number);
}

static Py_ssize_t ring_length(Ring *self) {
    return self->count;
}

static PyObject *ring_new(NEW_ARGUMENTS) {
    long long capacity, blocks, candidates, whole;
    PyObject *thinner;
    TRY_OR_NULL(READ_NEW("Ring", "LLLLO",
                         "capacity max_waiting_blocks max_candidates whole_per_s thin", &capacity,
                         &blocks, &candidates, &whole, &thinner));
    REFUSE_OR_NULL(capacity < 1 || capacity > PY_SSIZE_T_MAX / (long long)sizeof(Record *),
                   PyExc_ValueError, "a ring keeps at least 1 record, not %lld", capacity);
    Ring *self = (Ring *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->thin = Py_NewRef(thinner);
    self->capacity = (Py_ssize_t)capacity;
    self->max_waiting_blocks = blocks;
    self->max_candidates = candidates;
    self->whole_per_s = whole;
    self->slots = PyMem_Calloc((size_t)capacity, sizeof *self->slots);
    self->ended = PyMem_Calloc(MAX_ENDED, sizeof *self->ended);
    if (self->slots == NULL || self->ended == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void ring_dealloc(Ring *self) {
    for (Py_ssize_t i = 0; self->slots != NULL && i < self->capacity; i++) {
        Py_XDECREF(self->slots[i]);
    }
    for (Py_ssize_t i = 0; self->ended != NULL && i < MAX_ENDED; i++) {
        Py_XDECREF(self->ended[i]);
    }
    FREE_ALL(self->slots, self->ended);
    Py_XDECREF(self->thin);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

MEMBERS(members,
    FIELDS(Ring, T_PYSSIZET, READONLY, capacity)
    FIELDS(Ring, T_LONGLONG, READONLY, number, version, candidates, waiting_blocks, dropped,
           dropped_ends))

METHODS(methods,
    METHOD_O("may_weigh_all", may_weigh_method),
    METHOD_NOARGS("next_decided", next_decided_method),
    METHOD_NOARGS("next_ended", next_ended_method),
    METHOD_NOARGS("waiting", waiting_method),
    METHOD_O("find", find_method),
    METHOD_O("latest", latest_method),
    METHOD_O("changed_after", changed_method))

static PySequenceMethods as_sequence = {.sq_length = (lenfunc)ring_length};

PyTypeObject ring_type = {
    TYPE("Ring", Ring, ring),
    .tp_as_sequence = &as_sequence,
    .tp_members = members, .tp_methods = methods,
};
