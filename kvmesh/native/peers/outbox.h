/* BookingOutbox: what this replica has yet to tell its siblings of its bookings, as the records in
 * which that travels (core.routing.peer_records).
 */
#pragma once

#include "loads/sequences.h"
#include "peers/booking_wire.h"

typedef struct {
    PyObject_HEAD
    Sequences *sequences;
    PyObject *on_first; /* called with the first event of a quiet time; NULL: nobody */
    PyObject *bookings; /* dict: request id -> Told */
    PyObject *retried;  /* dict: request id -> Told, of attempts that failed */
    PyObject *workers;  /* dict: worker -> Told */
    unsigned long long epoch, next_seq;
    long long untold, state;
    uint32_t number, next_worker;
    char gathering;
    uint8_t format; /* the first byte of every message */
    uint8_t *records; /* `size` bytes of them, of which there are `events` */
    size_t size, room;
    unsigned long long events;
} BookingOutbox;

/* A booking or a worker that peers know by `number`; `upto` is what was told of it last: output
 * tokens of a booking, the number of the state in which a worker was named.
 */
typedef struct {
    PyObject_HEAD
    uint32_t number;
    long long upto;
} Published;

/* How an attempt failed; `kind` is bytes. */
typedef struct {
    long long verdict;
    PyObject *kind;
    double lost_s, retry_after_s;
} Failure;

/* The hashes that stand for a prompt. */
typedef struct {
    uint64_t at[MOST_GRADED];
    Py_ssize_t count;
    long long blocks;
} Graded;

#define MAX_KIND 32 /* characters kept of the word that says how an attempt failed */

extern PyTypeObject outbox_type, published_type;

/* Tell of a live booking of this replica's own; of its prompt as `booking->hashes` or its keys say.
 * Never fails: what cannot be told is counted. May run anything, so hold the booking.
 */
void outbox_placed(BookingOutbox *self, Booking *booking);

/* Tell of the first token, and the end, of a booking that was served. Hold the id, a str itself. */
void outbox_first_token(BookingOutbox *self, PyObject *request_id);
void outbox_served(BookingOutbox *self, PyObject *request_id);

/* Tell how a booking failed, and keep its number for a second attempt. As `outbox_served`. */
void outbox_failed(BookingOutbox *self, PyObject *request_id, const Failure *failure);

/* Return a live booking of this replica's own, borrowed; NULL: there is none of that id. */
Booking *outbox_find_own(const BookingOutbox *self, PyObject *request_id);

/* Tell how many tokens an answer has. */
void outbox_grew(BookingOutbox *self, Published *published, long long tokens);

/* Tell of a booking as it is now, if it lives and is this replica's own. Hold it. */
void outbox_republish(BookingOutbox *self, const Booking *booking);

/* Tell that a state begins, or ends. */
void outbox_mark(BookingOutbox *self, uint8_t kind);

/* Call who sends what waits, once. May run anything. */
void outbox_wake(BookingOutbox *self);

/* Return whether the whole hashes of a prompt are known, which is believed cached. */
static inline int is_believed(const Booking *booking) {
    const PyObject *hashes = booking->hashes;
    return hashes != NULL && hashes != Py_None && !PyBytes_Check(hashes);
}

/* Find the hashes that stand for a booking's prompt; -1 with an error set. May run anything. */
int graded_read(const Booking *booking, long long size, Graded *out);

/* Return the blocks of output that were expected when the booking was placed. */
long long booking_expected_blocks(const Booking *booking, long long size);
