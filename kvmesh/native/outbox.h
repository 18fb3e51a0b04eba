/* BookingOutbox: what this replica has yet to tell its siblings of its bookings, as the records that
 * travel: core.routing.peers.outbox, compiled.
 */
#ifndef KVMESH_OUTBOX_H
#define KVMESH_OUTBOX_H

#include "sequences.h"

typedef struct {
    PyObject_HEAD
    Sequences *sequences;
    PyObject *on_first; /* called with the first event of a quiet time; NULL: nobody */
    PyObject *other;    /* writes another format in place of this one; NULL: none */
    PyObject *bookings; /* dict: request id -> Told */
    PyObject *retried;  /* dict: request id -> Told, of attempts that failed */
    PyObject *workers;  /* dict: worker -> Told */
    unsigned long long epoch, next_seq;
    long long untold, state;
    uint32_t number, next_worker;
    char gathering;
    uint8_t *records; /* `size` bytes of them, of which there are `events` */
    size_t size, room;
    unsigned long long events;
} BookingOutbox;

extern PyTypeObject outbox_type, told_type;

/* Prepare names, once; -1 with an error set. */
int outbox_ready(void);

/* Tell of a live booking of this replica's own; of its prompt as `booking->hashes` or its keys say. Never
 * fails: what cannot be told is counted. May run anything, so hold the booking.
 */
void outbox_placed(BookingOutbox *self, Booking *booking);

/* Tell of the first token, and the end, of a booking that was served. Hold the id, a str itself. */
void outbox_first_token(BookingOutbox *self, PyObject *request_id);
void outbox_served(BookingOutbox *self, PyObject *request_id);

#endif
