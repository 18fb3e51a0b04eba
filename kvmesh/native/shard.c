/* One part of a table, see shard.h. */
#include "shard.h"

#define SMALLEST 4U
#define LARGEST (1U << 28)

/* Return the room that so many entries need, 0 when there can be none. */
static uint32_t room_of(uint64_t used) {
    uint64_t room = SMALLEST;
    while (used * 4 > room * 3) {
        room *= 2;
    }
    return room > LARGEST ? 0 : (uint32_t)room;
}

static void place(Shard *self, const Entry *entry) {
    uint32_t last = self->room - 1, at = shard_home(self, entry->block);
    while (self->entries[at].set) {
        at = (at + 1) & last;
    }
    self->entries[at] = *entry;
    self->entries[at].order = self->next++;
    self->used++;
}

/* Move everything, in order, to a place of `room`. */
static int rebuild(Shard *self, uint32_t room) {
    uint32_t *ordered = shard_ordered(self);
    Shard fresh = {.room = room, .shift = 64 - (uint32_t)__builtin_ctz(room | LARGEST * 2)};
    if (ordered == NULL) {
        return -1;
    }
    fresh.entries = room ? PyMem_RawCalloc(room, sizeof *fresh.entries) : NULL;
    if (fresh.entries == NULL) {
        PyMem_Free(ordered);
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < self->used; i++) {
        place(&fresh, self->entries + ordered[i]);
    }
    PyMem_Free(ordered);
    PyMem_RawFree(self->entries);
    *self = fresh;
    return 0;
}

int shard_resize(Shard *self, uint32_t blocks) {
    return rebuild(self, room_of((uint64_t)self->used + blocks));
}

uint32_t shard_insert(Shard *self, uint64_t block) {
    if (((uint64_t)self->used + 1) * 4 > (uint64_t)self->room * 3) {
        if (rebuild(self, room_of((uint64_t)self->used + 1)) < 0) {
            return NOWHERE;
        }
    } else if (self->next >= self->room * 4 && rebuild(self, self->room) < 0) {
        return NOWHERE;
    }
    uint32_t last = self->room - 1, at = shard_home(self, block);
    while (self->entries[at].set) {
        at = (at + 1) & last;
    }
    self->entries[at] = (Entry){.block = block, .order = self->next++};
    self->used++;
    return at;
}

void shard_remove(Shard *self, uint32_t at) {
    uint32_t last = self->room - 1, next = at;
    /* Entries behind the gap close it, unless that put one before its home. */
    for (;;) {
        next = (next + 1) & last;
        const Entry *entry = self->entries + next;
        if (!entry->set) {
            break;
        }
        uint32_t home = shard_home(self, entry->block);
        if (((next - home) & last) >= ((next - at) & last)) {
            self->entries[at] = *entry;
            at = next;
        }
    }
    self->entries[at] = (Entry){0};
    self->used--;
}

int shard_copy(const Shard *self, Shard *copy) {
    *copy = (Shard){0};
    if (!self->used) {
        return 0;
    }
    copy->entries = PyMem_RawMalloc(((size_t)self->used + 1) * sizeof *copy->entries);
    if (copy->entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    uint32_t used = 0; /* free entries are overwritten: a jump would be guessed wrong too often */
    for (uint32_t at = 0; at < self->room; at++) {
        copy->entries[used] = self->entries[at];
        used += self->entries[at].set != 0;
    }
    copy->room = copy->used = used;
    copy->next = self->next;
    return 0;
}

uint32_t *shard_ordered(const Shard *self) {
    uint32_t *places = PyMem_Malloc(((size_t)self->next + 1) * sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memset(places, 0xFF, ((size_t)self->next + 1) * sizeof *places);
    for (uint32_t at = 0; at < self->room; at++) {
        if (self->entries[at].set) {
            places[self->entries[at].order] = at;
        }
    }
    uint32_t count = 0;
    for (uint32_t order = 0; order < self->next; order++) {
        if (places[order] != NOWHERE) {
            places[count++] = places[order];
        }
    }
    return places;
}

void shard_free(Shard *self) {
    PyMem_RawFree(self->entries);
    *self = (Shard){0};
}
