/* Recent: a table of numbers with the least recently used first, for bounded memories. */
#pragma once

#include "base/mixing.h"

/* One number, and what its owner keeps of it. */
typedef struct {
    uint64_t key;
    long long count;
    double amount;
    uint32_t before, after; /* places + 1 of its neighbours by use, 0 for none */
} RecentEntry;

/* Places are reused. All zeros is an empty one. */
typedef struct {
    RecentEntry *entries;
    uint32_t *index; /* place + 1, 0 for free; `mask` + 1 of them, open addressing */
    uint32_t room, used, mask, count, oldest, newest, unused; /* unused: a chain by `after` */
} Recent;

/* Return where the index has a number, or where it would be; there is room. */
static inline uint32_t *recent_slot(const Recent *self, uint64_t key) {
    return INDEX_SLOT(self->index, self->mask, self->entries, key);
}

/* Return its entry, valid until the next `recent_reserve`; NULL: it has none. */
static inline RecentEntry *recent_find(const Recent *self, uint64_t key) {
    uint32_t number = self->index == NULL ? 0 : *recent_slot(self, key);
    return number ? self->entries + number - 1 : NULL;
}

/* Take an entry out of the order of use, or put one that is not in it at its end. */
static inline void recent_unlink(Recent *self, RecentEntry *entry) {
    *(entry->before ? &self->entries[entry->before - 1].after : &self->oldest) = entry->after;
    *(entry->after ? &self->entries[entry->after - 1].before : &self->newest) = entry->before;
}

static inline void recent_link(Recent *self, RecentEntry *entry) {
    uint32_t number = (uint32_t)(entry - self->entries) + 1;
    entry->before = self->newest;
    entry->after = 0;
    *(self->newest ? &self->entries[self->newest - 1].after : &self->oldest) = number;
    self->newest = number;
}

/* Make an entry the newest. */
static inline void recent_touch(Recent *self, RecentEntry *entry) {
    recent_unlink(self, entry);
    recent_link(self, entry);
}

/* Make room for so many more; -1 with MemoryError set, and nothing changed. */
int recent_reserve(Recent *self, uint32_t more);

/* Add a number that is not there as the newest, and return its entry, all zeros; there is room. */
RecentEntry *recent_add(Recent *self, uint64_t key);

void recent_remove(Recent *self, RecentEntry *entry);

/* Forget all; the memory stays, or goes. */
void recent_clear(Recent *self);
void recent_free(Recent *self);
