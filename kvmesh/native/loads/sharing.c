/* The sharing keys that a worker's requests hold, with how many of them do. */
#include "base/mixing.h"
#include "loads/loads.h"

#define LEAST_ROOM 8
#define KEPT_ROOM 256 /* of a table that shrinks: requests come and go without allocating */

static inline size_t home_of(const Shared *self, uint64_t key) {
    return (size_t)(mixed(key) >> 32) & (self->room - 1);
}

/* Return where a key stands, or the empty place where it would. There is one: at most half are taken. */
static inline size_t find_place(const Shared *self, uint64_t key) {
    size_t last = self->room - 1, at = home_of(self, key);
    while (self->places[at].holders && self->places[at].key != key) {
        at = (at + 1) & last;
    }
    return at;
}

static int move_to(Shared *self, size_t room) {
    SharedKey *places = PyMem_Calloc(room, sizeof *places);
    NEED(places);
    Shared moved = {places, room, self->used};
    for (size_t i = 0; i < self->room; i++) {
        if (self->places[i].holders) {
            places[find_place(&moved, self->places[i].key)] = self->places[i];
        }
    }
    PyMem_Free(self->places);
    *self = moved;
    return 0;
}

int shared_reserve(Shared *self, size_t more) {
    size_t room = self->room ? self->room : LEAST_ROOM;
    while (room < 2 * (self->used + more)) {
        room *= 2;
    }
    if (room > self->room && more && move_to(self, room) < 0) {
        return no_memory();
    }
    return 0;
}

long long shared_hold(Shared *self, const uint64_t *keys, Py_ssize_t count) {
    long long fresh = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        SharedKey *place = self->places + find_place(self, keys[i]);
        if (place->holders++ == 0) {
            /* Kept: who gives the last reference back may know the key by another number. */
            place->key = keys[i];
            place->blocks = (uint32_t)key_blocks(i + 1);
            fresh += place->blocks;
            self->used++;
        }
    }
    return fresh;
}

/* Empty a place, and move those behind it up which stand further from home than it. */
static void erase(Shared *self, size_t hole) {
    size_t last = self->room - 1;
    CLOSE_HOLE(hole, last, !self->places[at].holders, home_of(self, self->places[at].key),
               self->places[hole] = self->places[at]);
    self->places[hole].holders = 0;
    self->used--;
}

long long shared_release(Shared *self, const uint64_t *keys, Py_ssize_t count) {
    long long freed = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t at = find_place(self, keys[i]);
        if (--self->places[at].holders == 0) {
            freed += self->places[at].blocks;
            erase(self, at);
        }
    }
    if (self->room > KEPT_ROOM && self->used < self->room / 8) {
        move_to(self, self->room / 4); /* what cannot be moved stays where it is */
    }
    return freed;
}

long long shared_depth(const Shared *self, const SharingKeys *keys, long long count) {
    long long low = 1, high = count;
    if (!self->places[find_place(self, sharing_key(keys, 1))].holders) {
        return 0;
    }
    while (low < high) {
        long long middle = (low + high + 1) >> 1;
        if (self->places[find_place(self, sharing_key(keys, middle))].holders) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

PyObject *shared_dict(const Shared *self) {
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < self->room; i++) {
        if (!self->places[i].holders) {
            continue;
        }
        if (dict_add(dict, PyLong_FromUnsignedLongLong(self->places[i].key),
                     PyLong_FromUnsignedLongLong(self->places[i].holders)) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

