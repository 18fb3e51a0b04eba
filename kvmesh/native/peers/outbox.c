/* BookingOutbox: records are written where they wait. */
#include "base/shell.h"
#include "peers/outbox.h"

#include <string.h>

#define MOST_NAME 512 /* characters: kvmesh.bounds.MAX_NAME */

enum { MOST_RETRIED = 1024 };
enum { MOST_WORKERS = 1 << 14, FIRST_ROOM = 4096, MOST_BYTES = 4 << 20 };

static Published *published_new(uint32_t number, long long upto) {
    Published *self = PyObject_New(Published, &published_type);
    if (self != NULL) {
        self->number = number;
        self->upto = upto;
    }
    return self;
}

static void put_seconds(uint8_t *at, double seconds) {
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    write_u64(at, bits);
}

static uint32_t clamp32(long long amount) { return (uint32_t)within(0, amount, UINT32_MAX); }

/* Leave out all that waits, and `more` events: peers find the gap in their numbers. */
static void leave_out(BookingOutbox *self, unsigned long long more) {
    self->untold += (long long)(self->events + more);
    self->next_seq += self->events + more;
    self->events = 0;
    self->size = 0;
}

/* Return a new record of zeros, to be written; NULL when there is no memory for it. */
static uint8_t *add(BookingOutbox *self, uint8_t kind, uint32_t number, size_t bytes) {
    if (self->size + bytes > MOST_BYTES) {
        leave_out(self, 0);
    }
    if (self->size + bytes > self->room) {
        size_t room = self->size + bytes + (self->size + bytes) / 2;
        room = room > FIRST_ROOM ? room : FIRST_ROOM;
        uint8_t *grown = PyMem_Realloc(self->records, room);
        if (grown == NULL) {
            leave_out(self, 1);
            return NULL;
        }
        self->records = grown;
        self->room = room;
    }
    uint8_t *record = self->records + self->size;
    memset(record, 0, bytes);
    record[0] = kind;
    write_u32(record + 4, number);
    self->size += bytes;
    self->events++;
    return record;
}

void outbox_wake(BookingOutbox *self) {
    if (self->gathering || self->on_first == NULL || self->on_first == Py_None) {
        return;
    }
    self->gathering = 1;
    PyObject *on_first = Py_NewRef(self->on_first), *answer = PyObject_CallNoArgs(on_first);
    if (answer == NULL) {
        PyErr_WriteUnraisable(on_first);
    }
    Py_XDECREF(answer);
    Py_DECREF(on_first);
}

/* Return what is known under a name, borrowed; NULL without an error set when there is nothing. */
static Published *find(PyObject *known, PyObject *name) {
    Published *published = (Published *)PyDict_GetItemWithError(known, name);
    if (published == NULL) {
        PyErr_Clear();
    }
    return published;
}

/* Take out what is known under a name: a new reference; NULL as `find`. */
static Published *pop(PyObject *known, PyObject *name) {
    Published *published = find(known, name);
    NEED_OR_NULL(published);
    Py_INCREF(published);
    if (PyDict_DelItem(known, name) < 0) {
        PyErr_Clear();
    }
    return published;
}

/* Tell a worker's name if that is due; 1 with its number, 0 when it cannot be told. */
static int name_worker(BookingOutbox *self, PyObject *name, uint32_t *number) {
    Published *published = find(self->workers, name);
    if (published != NULL && published->upto == self->state) {
        *number = published->number;
        return 1;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL || length == 0 || PyUnicode_GET_LENGTH(name) > MOST_NAME) {
        return 0;
    }
    if (published == NULL) {
        if (PyDict_GET_SIZE(self->workers) >= MOST_WORKERS) {
            PyDict_Clear(self->workers);
        }
        published = published_new(self->next_worker, self->state);
        if (published == NULL || PyDict_SetItem(self->workers, name, (PyObject *)published) < 0) {
            Py_XDECREF(published);
            return 0;
        }
        self->next_worker++;
        Py_DECREF(published);
    }
    published->upto = self->state;
    *number = published->number;
    uint8_t *record = add(self, RECORD_NAMED, published->number, SHORT_BYTES + padded(length));
    if (record == NULL) {
        return 0;
    }
    write_u16(record + 2, (uint16_t)length);
    memcpy(record + 8, text, (size_t)length);
    return 1;
}

/* Return what a booking is known by, made when it is told the first time: borrowed; NULL without
 * memory.
 */
static Published *number_booking(BookingOutbox *self, PyObject *request_id) {
    Published *published = find(self->bookings, request_id);
    if (published != NULL) {
        return published;
    }
    published = pop(self->retried, request_id);
    if (published == NULL && (published = published_new(self->number + 1, 0)) != NULL) {
        self->number++;
    }
    if (published == NULL || PyDict_SetItem(self->bookings, request_id, (PyObject *)published) < 0) {
        Py_XDECREF(published);
        return NULL;
    }
    published->upto = 0;
    Py_DECREF(published);
    return published;
}

/* Tell of a booking under the number it has, or gets: borrowed; NULL for one that cannot be told.
 * May run anything before it writes: hold the booking.
 */
static Published *place(BookingOutbox *self, const Booking *booking) {
    Graded graded;
    uint32_t worker;
    Published *published = NULL;
    if (graded_read(booking, self->sequences->block_size, &graded) == 0 &&
        name_worker(self, booking->worker, &worker)) {
        published = number_booking(self, booking->request_id);
    }
    if (published == NULL) {
        PyErr_Clear();
        self->untold++;
        return NULL;
    }
    size_t hashes = (size_t)graded.count * sizeof *graded.at;
    uint8_t *record = add(self, RECORD_PLACED, published->number, PLACED_BYTES + hashes);
    if (record == NULL) {
        return published;
    }
    record[1] = (uint8_t)((booking->streams ? PLACED_STREAMS : 0) |
                          (is_believed(booking) ? PLACED_BELIEVED : 0) |
                          (booking->turn ? PLACED_TURN : 0));
    write_u16(record + 2, (uint16_t)graded.count);
    write_u32(record + 8, worker);
    write_u32(record + 12, (uint32_t)graded.blocks);
    write_u32(record + 16, clamp32(booking->prompt_tokens));
    write_u32(record + 20, clamp32(booking->uncached_tokens));
    write_u32(record + 24, clamp32(booking_expected_blocks(booking, self->sequences->block_size)));
    for (Py_ssize_t i = 0; i < graded.count; i++) {
        write_u64(record + PLACED_BYTES + 8 * i, graded.at[i]);
    }
    return published;
}

static int is_local(const Booking *booking) { return PyUnicode_GET_LENGTH(booking->owner) == 0; }

void outbox_placed(BookingOutbox *self, Booking *booking) {
    if (!is_local(booking) || find(self->bookings, booking->request_id) != NULL) {
        return;
    }
    Py_INCREF(self);
    place(self, booking);
    outbox_wake(self);
    Py_DECREF(self);
}

void outbox_first_token(BookingOutbox *self, PyObject *request_id) {
    const Published *published = find(self->bookings, request_id);
    if (published == NULL) {
        return;
    }
    Py_INCREF(self);
    add(self, RECORD_PREFILLED, published->number, 8);
    outbox_wake(self);
    Py_DECREF(self);
}

void outbox_served(BookingOutbox *self, PyObject *request_id) {
    Published *published = pop(self->bookings, request_id);
    if (published == NULL) {
        return;
    }
    Py_INCREF(self);
    add(self, RECORD_ENDED, published->number, 8);
    Py_DECREF(published);
    outbox_wake(self);
    Py_DECREF(self);
}

/* Tell that a booking, which is taken out already, failed, and keep its number. */
static void fail(BookingOutbox *self, PyObject *request_id, Published *published, const Failure *failure) {
    Py_ssize_t length = failure->kind == NULL ? 0 : PyBytes_GET_SIZE(failure->kind);
    uint8_t *record = add(self, RECORD_FAILED, published->number, FAILED_BYTES + padded(length));
    if (record != NULL) {
        record[1] = (uint8_t)failure->verdict;
        record[2] = (uint8_t)length;
        put_seconds(record + 8, failure->lost_s);
        put_seconds(record + 16, failure->retry_after_s);
        if (length) {
            memcpy(record + FAILED_BYTES, PyBytes_AS_STRING(failure->kind), (size_t)length);
        }
    }
    PyObject *oldest, *known;
    Py_ssize_t at = 0;
    if (PyDict_GET_SIZE(self->retried) >= MOST_RETRIED &&
        PyDict_Next(self->retried, &at, &oldest, &known)) {
        Py_INCREF(oldest);
        PyDict_DelItem(self->retried, oldest);
        Py_DECREF(oldest);
    }
    if (PyErr_Occurred() || PyDict_SetItem(self->retried, request_id, (PyObject *)published) < 0) {
        PyErr_Clear();
    }
}

void outbox_failed(BookingOutbox *self, PyObject *request_id, const Failure *failure) {
    Published *published = pop(self->bookings, request_id);
    if (published != NULL) {
        fail(self, request_id, published, failure);
        Py_DECREF(published);
    }
}

Booking *outbox_find_own(const BookingOutbox *self, PyObject *request_id) {
    Booking *booking = sequences_find(self->sequences, request_id);
    PyErr_Clear();
    return booking != NULL && is_local(booking) ? booking : NULL;
}

void outbox_grew(BookingOutbox *self, Published *published, long long tokens) {
    published->upto = tokens;
    uint8_t *record = add(self, RECORD_GREW, published->number, 16);
    if (record != NULL) {
        write_u64(record + 8, (uint64_t)tokens);
    }
}

void outbox_republish(BookingOutbox *self, const Booking *booking) {
    int live = outbox_find_own(self, booking->request_id) == booking;
    Published *published = live ? place(self, booking) : NULL;
    if (published == NULL) {
        return;
    }
    if (!booking->prefilling) {
        add(self, RECORD_PREFILLED, published->number, 8);
    }
    if (booking->output_tokens) {
        outbox_grew(self, published, booking->output_tokens);
    }
}

void outbox_mark(BookingOutbox *self, uint8_t kind) { add(self, kind, 0, 8); }

static void published_dealloc(Published *self) { PyObject_Free(self); }

PyTypeObject published_type = {
    INNER_TYPE("Published", Published, published),
};
