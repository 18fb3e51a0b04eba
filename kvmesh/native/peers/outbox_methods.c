/* The methods of BookingOutbox, and the messages that its records make. */
#include "base/names.h"
#include "base/shell.h"
#include "peers/outbox.h"

#include <string.h>

enum { VERDICT_UNKNOWN, VERDICT_SERVED };
enum { KEPT_ROOM = 1 << 18 };

/* Read an attempt; -1 with an error set. May run anything. `kind` is to be let go either way. */
static int read_failure(PyObject *attempt, Failure *out) {
    TRY(read_attribute(attempt, interned.verdict, 'L', &out->verdict));
    PyObject *kind = PyObject_GetAttr(attempt, interned.kind);
    if (kind != NULL && !PyUnicode_Check(kind)) {
        PyErr_Format(PyExc_TypeError, "an attempt's kind is a str, not %.100R", kind);
        Py_CLEAR(kind);
    }
    PyObject *cut = kind == NULL ? NULL : PyUnicode_Substring(kind, 0, MAX_KIND);
    Py_XDECREF(kind);
    out->kind = cut == NULL ? NULL : PyUnicode_AsEncodedString(cut, "utf-8", "replace");
    Py_XDECREF(cut);
    NEED(out->kind);
    TRY(read_attribute(attempt, interned.lost_s, 'd', &out->lost_s));
    return read_attribute(attempt, interned.retry_after_s, 'd', &out->retry_after_s);
}

static PyObject *call_placed(BookingOutbox *self, PyObject *booking) {
    REFUSE_OR_NULL(!Py_IS_TYPE(booking, &booking_type), PyExc_TypeError,
                   "a booking is a Booking, not %.100R", booking);
    outbox_placed(self, (Booking *)booking);
    Py_RETURN_NONE;
}

static PyObject *call_first_token(BookingOutbox *self, PyObject *given) {
    PyObject *request_id = read_text("a request id", given);
    NEED_OR_NULL(request_id);
    outbox_first_token(self, request_id);
    Py_DECREF(request_id);
    Py_RETURN_NONE;
}

/* ended(request_id, attempt=SERVED) */
static PyObject *call_ended(BookingOutbox *self, NAMED_ARGUMENTS) {
    PyObject *given, *attempt = NULL;
    TRY_OR_NULL(READ("ended", "O|O", "request_id attempt", &given, &attempt));
    Failure failure = {.verdict = VERDICT_SERVED};
    PyObject *request_id = read_text("a request id", given);
    if (request_id == NULL || (attempt != NULL && read_failure(attempt, &failure) < 0)) {
        XDECREF_ALL(request_id, failure.kind);
        return NULL;
    }
    if (failure.verdict == VERDICT_SERVED) {
        outbox_served(self, request_id);
    } else if (PyDict_Contains(self->bookings, request_id) == 1) {
        outbox_failed(self, request_id, &failure);
        outbox_wake(self);
    }
    Py_DECREF(request_id);
    Py_XDECREF(failure.kind);
    Py_RETURN_NONE;
}

/* Tell how far a booking has grown, or note that it is gone; -1 with MemoryError set. */
static int publish_growth_of(BookingOutbox *self, PyObject *request_id, Published *published, PyObject *gone) {
    const Booking *booking = outbox_find_own(self, request_id);
    if (booking == NULL) {
        return PyList_Append(gone, request_id);
    }
    if (booking->output_tokens > published->upto) {
        outbox_grew(self, published, booking->output_tokens);
    }
    return 0;
}

static PyObject *call_publish_growth(BookingOutbox *self, PyObject *Py_UNUSED(none)) {
    PyObject *gone = PyList_New(0), *request_id, *known;
    NEED_OR_NULL(gone);
    /* To look a booking up may run anything, where somebody put keys of his own among them. */
    int failed = 0;
    for (Py_ssize_t at = 0; !failed && PyDict_Next(self->bookings, &at, &request_id, &known);) {
        Py_INCREF(request_id);
        Py_INCREF(known);
        failed = publish_growth_of(self, request_id, (Published *)known, gone) < 0;
        Py_DECREF(known);
        Py_DECREF(request_id);
    }
    Failure unknown = {.verdict = VERDICT_UNKNOWN};
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(gone); i++) {
        outbox_failed(self, PyList_GET_ITEM(gone, i), &unknown);
    }
    Py_DECREF(gone);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_begin_state(BookingOutbox *self, PyObject *Py_UNUSED(none)) {
    self->state++;
    outbox_mark(self, RECORD_STATE_BEGINS);
    Py_RETURN_NONE;
}

static PyObject *call_end_state(BookingOutbox *self, PyObject *Py_UNUSED(none)) {
    outbox_mark(self, RECORD_STATE_ENDS);
    Py_RETURN_NONE;
}

static PyObject *call_republish(BookingOutbox *self, PyObject *bookings) {
    PyObject *each = PyObject_GetIter(bookings), *booking;
    while (each != NULL && (booking = PyIter_Next(each)) != NULL) {
        if (Py_IS_TYPE(booking, &booking_type)) {
            outbox_republish(self, (Booking *)booking);
        } else {
            PyErr_Format(PyExc_TypeError, "a booking is a Booking, not %.100R", booking);
            Py_CLEAR(each);
        }
        Py_DECREF(booking);
    }
    Py_XDECREF(each);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Consecutive records. */
typedef struct {
    const uint8_t *at;
    size_t bytes;
    unsigned long long events, first_seq;
} Run;

static PyObject *message(const BookingOutbox *self, const Run *run, PyObject *shares) {
    Py_ssize_t behind = shares == NULL ? 0 : PyBytes_GET_SIZE(shares);
    PyObject *made = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + (Py_ssize_t)run->bytes + behind);
    NEED_OR_NULL(made);
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(made);
    memset(out, 0, HEAD_BYTES);
    out[0] = self->format;
    out[1] = behind ? HEAD_SHARES : 0;
    write_u32(out + 4, (uint32_t)run->events);
    write_u64(out + 8, self->epoch);
    write_u64(out + 16, run->first_seq);
    if (run->bytes) {
        memcpy(out + HEAD_BYTES, run->at, run->bytes);
    }
    if (behind) {
        memcpy(out + HEAD_BYTES + run->bytes, PyBytes_AS_STRING(shares), (size_t)behind);
    }
    return made;
}

/* Append the messages of `all` records; -1 with MemoryError set. */
static int split(const BookingOutbox *self, PyObject *taken, const Run *all,
                 const Py_ssize_t *bounds, PyObject *shares) {
    Run run = {.at = all->at, .first_seq = all->first_seq};
    const uint8_t *end = all->at + all->bytes;
    while (run.at < end) {
        run.bytes += (size_t)wire_record_bytes(run.at + run.bytes);
        run.events++;
        int last = run.at + run.bytes >= end;
        if (last || (Py_ssize_t)run.events >= bounds[0] || (Py_ssize_t)run.bytes >= bounds[1]) {
            TRY(list_add(taken, message(self, &run, last ? shares : NULL)));
            run = (Run){.at = run.at + run.bytes, .first_seq = run.first_seq + run.events};
        }
    }
    return 0;
}

/* take(max_events, max_bytes, shares=b"") -> messages */
static PyObject *call_take(BookingOutbox *self, ARGUMENTS) {
    PyObject *shares = NULL;
    Py_ssize_t bounds[2];
    TRY_OR_NULL(READ_PLACED("take", "nn|S", "max_events max_bytes shares", bounds, bounds + 1,
                            &shares));
    PyObject *taken = PyList_New(0);
    NEED_OR_NULL(taken);
    /* What comes while the messages are made has records and numbers of its own. */
    uint8_t *records = self->records;
    size_t room = self->room;
    Run all = {records, self->size, self->events, self->next_seq};
    self->records = NULL;
    self->next_seq += self->events;
    self->size = self->room = 0;
    self->events = 0;
    int failed = all.events ? split(self, taken, &all, bounds, shares)
                 : shares != NULL && PyBytes_GET_SIZE(shares)
                     ? list_add(taken, message(self, &all, shares))
                     : 0;
    if (self->records == NULL && room <= KEPT_ROOM) {
        self->records = records;
        self->room = room;
    } else {
        PyMem_Free(records);
    }
    if (failed < 0) {
        Py_CLEAR(taken);
    }
    return taken;
}

/* beat(shares=b"") -> message */
static PyObject *call_beat(BookingOutbox *self, ARGUMENTS) {
    PyObject *shares = NULL;
    Run none = {.first_seq = self->next_seq};
    return READ_PLACED("beat", "|S", "shares", &shares) < 0 ? NULL : message(self, &none, shares);
}

static PyObject *outbox_new(NEW_ARGUMENTS) {
    PyObject *sequences;
    uint64_t number;
    TRY_OR_NULL(READ_NEW("BookingOutbox", "!K", "sequences epoch", &sequences_type, &sequences,
                         &number));
    BookingOutbox *self = (BookingOutbox *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->sequences = (Sequences *)Py_NewRef(sequences);
    self->epoch = number;
    self->next_seq = 1;
    self->format = RECORDS_VERSION;
    self->bookings = PyDict_New();
    self->retried = PyDict_New();
    self->workers = PyDict_New();
    return made_or_null(self);
}

TRAVERSE(BookingOutbox, outbox, sequences, on_first)

/* The tables stay: they are part of no cycle, and methods need them. */
static int outbox_clear(BookingOutbox *self) {
    Py_CLEAR(self->on_first);
    return 0;
}

static void outbox_dealloc(BookingOutbox *self) {
    PyObject_GC_UnTrack(self);
    outbox_clear(self);
    XDECREF_ALL(self->sequences, self->bookings, self->retried, self->workers);
    PyMem_Free(self->records);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

MEMBERS(members,
    FIELDS(BookingOutbox, T_ULONGLONG, READONLY, epoch, next_seq)
    FIELDS(BookingOutbox, T_LONGLONG, READONLY, untold)
    FIELDS(BookingOutbox, T_BOOL, 0, gathering)
    FIELDS(BookingOutbox, T_OBJECT, 0, on_first)
    FIELDS(BookingOutbox, T_UBYTE, 0, format)
    {"waiting", T_ULONGLONG, offsetof(BookingOutbox, events), READONLY, NULL},)

METHODS(methods,
    METHOD_O("placed", call_placed),
    METHOD_O("first_token", call_first_token),
    METHOD_KEYWORDS("ended", call_ended),
    METHOD_NOARGS("publish_growth", call_publish_growth),
    METHOD_NOARGS("begin_state", call_begin_state),
    METHOD_O("republish", call_republish),
    METHOD_NOARGS("end_state", call_end_state),
    METHOD_FASTCALL("take", call_take),
    METHOD_FASTCALL("beat", call_beat))

PyTypeObject outbox_type = {
    GC_TYPE("BookingOutbox", BookingOutbox, outbox),
    .tp_clear = (inquiry)outbox_clear,
    .tp_members = members, .tp_methods = methods,
};
