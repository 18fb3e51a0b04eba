/* Peer: one other replica, as far as it was heard. */
#pragma once

#include "loads/sequences.h"

/* A booking by its sender's number; NULL: a free place. */
typedef struct {
    Booking *booking;
    uint32_t number;
} Numbered;

/* What the names mean stands in kvmesh/_native.pyi. Behind them bookings by number, open addressing:
 * some of those that live here under this peer's name, and some that have ended since. `room` is a
 * power of 2, or 0.
 */
typedef struct {
    PyObject_HEAD
    PyObject *name;        /* of str itself */
    PyObject *workers;     /* dict: number, 4 bytes, -> name */
    PyObject *republished;      /* set of request ids */
    PyObject *unconfirmed; /* a set, None, or what somebody put there */
    long long epoch, next_seq, booked;
    double renewed_s, counted_s;
    char complete;
    Numbered *places;
    size_t room, used;
} Peer;

#define RENEW_S 0.5 /* a peer renews its bookings at most so often */

extern PyTypeObject peer_type, message_fold_type;

/* Return the id under which the booking of that number is kept, a new reference; NULL with an error
 * set.
 */
PyObject *peer_request_id(const Peer *self, uint32_t number);

/* Return the peer's live booking of that number, a new reference; NULL without an error: there is
 * none.
 */
Booking *peer_find(Peer *self, Sequences *sequences, uint32_t number);

/* Keep a live booking by its number; -1 with MemoryError set. */
int peer_keep(Peer *self, uint32_t number, Booking *booking);

/* Keep nothing by that number. */
void peer_drop(Peer *self, uint32_t number);
