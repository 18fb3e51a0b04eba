/* Peer: what was heard of another replica, and its bookings by their numbers. */
#include "base/mixing.h"
#include "base/shell.h"
#include "peers/peer.h"

#define LEAST_ROOM 16

static inline size_t home_of(const Peer *self, uint32_t number) {
    return (size_t)(mixed(number) >> 32) & (self->room - 1);
}

/* Return the place of a number, or the free one where it would stand; there is room. */
static Numbered *find_place(const Peer *self, uint32_t number) {
    size_t at = home_of(self, number);
    while (self->places[at].booking != NULL && self->places[at].number != number) {
        at = (at + 1) & (self->room - 1);
    }
    return self->places + at;
}

/* Move what lives to a table with twice the room for it, and drop what has ended; -1 with
 * MemoryError set.
 */
static int make_room(Peer *self) {
    Numbered *old = self->places;
    size_t old_room = self->room, live = 0, room = LEAST_ROOM;
    for (size_t i = 0; i < old_room; i++) {
        live += old[i].booking != NULL && old[i].booking->loads != NULL;
    }
    while (room < 4 * live) {
        room *= 2;
    }
    Numbered *places = PyMem_Calloc(room, sizeof *places);
    NEED_MEMORY(places);
    self->places = places;
    self->room = room;
    self->used = 0;
    for (size_t i = 0; i < old_room; i++) {
        if (old[i].booking != NULL && old[i].booking->loads != NULL) {
            *find_place(self, old[i].number) = old[i];
            old[i].booking = NULL;
            self->used++;
        }
    }
    for (size_t i = 0; i < old_room; i++) {
        Py_XDECREF(old[i].booking); /* its hashes are bytes or compiled: no code of others runs */
    }
    PyMem_Free(old);
    return 0;
}

int peer_keep(Peer *self, uint32_t number, Booking *booking) {
    TRY_IF(2 * (self->used + 1) > self->room, make_room(self));
    Numbered *place = find_place(self, number);
    self->used += place->booking == NULL;
    place->number = number;
    Booking *before = place->booking;
    place->booking = (Booking *)Py_NewRef(booking);
    Py_XDECREF(before);
    return 0;
}

void peer_drop(Peer *self, uint32_t number) {
    Numbered *hole = self->room ? find_place(self, number) : NULL;
    if (hole == NULL || hole->booking == NULL) {
        return;
    }
    Booking *gone = hole->booking;
    size_t last = self->room - 1, free_at = (size_t)(hole - self->places);
    CLOSE_HOLE(free_at, last, self->places[at].booking == NULL,
               home_of(self, self->places[at].number), self->places[free_at] = self->places[at]);
    self->places[free_at].booking = NULL;
    self->used--;
    Py_DECREF(gone);
}

PyObject *peer_request_id(const Peer *self, uint32_t number) {
    if (!PyUnicode_IS_COMPACT_ASCII(self->name)) {
        return PyUnicode_FromFormat("%U#%lu", self->name, (unsigned long)number);
    }
    char digits[10];
    int first = sizeof digits;
    do {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    Py_ssize_t length = PyUnicode_GET_LENGTH(self->name), rest = (Py_ssize_t)sizeof digits - first;
    PyObject *id = PyUnicode_New(length + 1 + rest, 127);
    if (id != NULL) {
        Py_UCS1 *text = PyUnicode_1BYTE_DATA(id);
        memcpy(text, PyUnicode_1BYTE_DATA(self->name), (size_t)length);
        text[length] = '#';
        memcpy(text + length + 1, digits + first, (size_t)rest);
    }
    return id;
}

/* Look a booking up by its id, as one that was not booked by its number, or is no longer kept by it. */
static Booking *find_by_id(Peer *self, Sequences *sequences, uint32_t number) {
    PyObject *id = peer_request_id(self, number);
    Booking *found = id == NULL ? NULL : sequences_find(sequences, id);
    Py_XDECREF(id);
    if (found == NULL || PyUnicode_Compare(found->owner, self->name) != 0 ||
        peer_keep(self, number, found) < 0) {
        return NULL;
    }
    return (Booking *)Py_NewRef(found);
}

Booking *peer_find(Peer *self, Sequences *sequences, uint32_t number) {
    Booking *found = self->room ? find_place(self, number)->booking : NULL;
    if (found != NULL && found->loads != NULL) {
        return (Booking *)Py_NewRef(found);
    }
    if (found != NULL) {
        peer_drop(self, number);
    }
    return find_by_id(self, sequences, number);
}

static PyObject *peer_new(NEW_ARGUMENTS) {
    PyObject *name;
    long long epoch;
    double now;
    TRY_OR_NULL(READ_NEW("Peer", "ULd", "name epoch now", &name, &epoch, &now));
    Peer *self = (Peer *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->name = read_text("a peer", name);
    self->workers = PyDict_New();
    self->republished = PySet_New(NULL);
    self->unconfirmed = Py_NewRef(Py_None);
    self->epoch = epoch;
    self->next_seq = 1;
    self->complete = 1;
    self->renewed_s = self->counted_s = now;
    return made_or_null(self);
}

static void peer_dealloc(Peer *self) {
    for (size_t i = 0; i < self->room; i++) {
        Py_XDECREF(self->places[i].booking);
    }
    PyMem_Free(self->places);
    XDECREF_ALL(self->name, self->workers, self->republished, self->unconfirmed);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

MEMBERS(members,
    FIELDS(Peer, T_OBJECT_EX, READONLY, name, workers, republished)
    FIELDS(Peer, T_OBJECT, 0, unconfirmed)
    FIELDS(Peer, T_LONGLONG, READONLY, epoch)
    FIELDS(Peer, T_LONGLONG, 0, next_seq, booked)
    FIELDS(Peer, T_DOUBLE, 0, renewed_s, counted_s)
    FIELDS(Peer, T_BOOL, 0, complete))

PyTypeObject peer_type = {
    TYPE("Peer", Peer, peer),
    .tp_members = members,
};
