/* Recent: see recent.h. */
#include "base/recent.h"

#include "base/arrays.h"

enum { FIRST_ROOM = 32 };

int recent_reserve(Recent *self, uint32_t more) {
    uint32_t room = self->room ? self->room : FIRST_ROOM;
    while (room - self->count < more) {
        room *= 2;
    }
    if (room == self->room) {
        return 0;
    }
    uint32_t *index = PyMem_Calloc((size_t)room * 2, sizeof *index);
    if (index == NULL || RESIZE(self->entries, room) < 0) {
        PyMem_Free(index);
        return no_memory();
    }
    PyMem_Free(self->index);
    self->index = index;
    self->mask = 2 * room - 1;
    self->room = room;
    for (uint32_t number = self->oldest; number; number = self->entries[number - 1].after) {
        *recent_slot(self, self->entries[number - 1].key) = number;
    }
    return 0;
}

RecentEntry *recent_add(Recent *self, uint64_t key) {
    uint32_t number = self->unused;
    if (number) {
        self->unused = self->entries[number - 1].after;
    } else {
        number = ++self->used;
    }
    RecentEntry *entry = self->entries + number - 1;
    *entry = (RecentEntry){.key = key};
    *recent_slot(self, key) = number;
    recent_link(self, entry);
    self->count++;
    return entry;
}

void recent_remove(Recent *self, RecentEntry *entry) {
    uint64_t hole = (uint64_t)(recent_slot(self, entry->key) - self->index);
    uint32_t number = self->index[hole];
    CLOSE_HOLE(hole, self->mask, self->index[at] == 0,
               mixed(self->entries[self->index[at] - 1].key) >> 32,
               self->index[hole] = self->index[at]);
    self->index[hole] = 0;
    recent_unlink(self, entry);
    entry->after = self->unused;
    self->unused = number;
    self->count--;
}

void recent_clear(Recent *self) {
    if (self->index != NULL) {
        memset(self->index, 0, ((size_t)self->mask + 1) * sizeof *self->index);
    }
    self->used = self->count = self->oldest = self->newest = self->unused = 0;
}

void recent_free(Recent *self) {
    FREE_ALL(self->entries, self->index);
}
