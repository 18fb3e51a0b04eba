/* Frozen: a table as it was at one moment, read shard by shard while the table moves on.
 *
 * Freezing is O(shards). An entry that was there, and is about to change or go before its shard was read, is
 * copied: what comes meanwhile has a later order and is left out. A segment of which as many were copied as
 * it has is copied whole, so that no change, however often, takes more. Copies refer to the table's sets, so
 * that these stay.
 */
#include "base/arrays.h"
#include "table/table.h"

static void drop_kept(Frozen *self, uint32_t number) {
    Kept *kept = self->kept + number;
    for (uint32_t i = 0; i < kept->count; i++) {
        sets_release(&self->table->sets, kept->entries[i].set);
    }
    PyMem_Free(kept->entries);
    *kept = (Kept){NULL, 0, 0};
}

/* Copy the entries of a segment that came before an order, without gaps, to where there is room for all. */
static uint32_t copy_entries(const Segment *segment, uint64_t end, Entry *entries) {
    uint32_t used = 0; /* others are overwritten: a jump would be guessed wrong too often */
    for (uint32_t at = 0; at < segment->room; at++) {
        const Entry *entry = segment->entries + at;
        entries[used] = *entry;
        used += (entry->set != 0) & (order_of(entry) < end);
    }
    return used;
}

/* Make room for so many more entries and one more; -1 with MemoryError set. */
static int reserve(Kept *kept, uint64_t more) {
    uint64_t wanted = kept->count + more + 1;
    if (wanted > kept->room) {
        uint64_t room = wanted + kept->room / 2;
        TRY(RESIZE(kept->entries, room));
        kept->room = (uint32_t)room;
    }
    return 0;
}

static int needs(const Frozen *view, uint32_t number, const Segment *segment) {
    return view->pending[number] && segment->stamp < view->number;
}

/* Let all open views copy a segment; -1 with MemoryError set. */
static int keep(Table *self, uint32_t number, Segment *segment) {
    for (Frozen *view = self->frozen; view != NULL; view = view->next) {
        TRY_IF(needs(view, number, segment), reserve(view->kept + number, segment->used));
    }
    for (Frozen *view = self->frozen; view != NULL; view = view->next) {
        if (needs(view, number, segment)) {
            Kept *kept = view->kept + number;
            Entry *copied = kept->entries + kept->count;
            uint32_t used = copy_entries(segment, view->ends[number], copied);
            for (uint32_t i = 0; i < used; i++) {
                sets_refer(&self->sets, copied[i].set);
            }
            kept->count += used;
        }
    }
    segment->stamp = self->freezes;
    return 0;
}

int table_keep_segment(Table *self, uint32_t number, Segment *segment) {
    return self->frozen == NULL || segment->stamp == self->freezes ? 0 : keep(self, number, segment);
}

int table_keep_entry(Table *self, uint32_t number, uint64_t hash, const Entry *entry) {
    if (self->frozen == NULL) {
        return 0;
    }
    Segment *segment = shard_segment(self->shards + number, hash);
    if (segment->noted >= segment->used) {
        segment->noted = 0;
        return table_keep_segment(self, number, segment);
    }
    for (Frozen *view = self->frozen; view != NULL; view = view->next) {
        Kept *kept = view->kept + number;
        if (needs(view, number, segment) && order_of(entry) < view->ends[number]) {
            TRY(reserve(kept, 1));
            sets_refer(&self->sets, entry->set);
            kept->entries[kept->count++] = *entry;
            segment->noted++;
        }
    }
    return 0;
}

void frozen_close(Frozen *self) {
    if (!self->open) {
        return;
    }
    Frozen **link = &self->table->frozen;
    while (*link != self) {
        link = &(*link)->next;
    }
    *link = self->next;
    self->open = 0;
}

void frozen_free(Frozen *self) {
    frozen_close(self);
    for (uint32_t number = 0; number < SHARDS; number++) {
        drop_kept(self, number);
    }
    self->table->changes++;
    Py_DECREF(self->table);
}

int shard_number(PyObject *object, uint32_t *number) {
    long wanted = PyLong_AsLong(object);
    if (wanted < 0 || wanted >= SHARDS) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "there is no shard %ld", wanted);
        }
        return -1;
    }
    *number = (uint32_t)wanted;
    return 0;
}

int frozen_keep_some(Frozen *self, uint32_t number, uint32_t most) {
    Shard *shard = self->table->shards + number;
    Segment *segment;
    uint32_t kept = 0;
    REFUSE(!self->open, PyExc_ValueError,
           "the view is closed: what it has not read may be another");
    uint64_t left = 0; /* room for them is made once: to copy 16 MB to more of it takes 10 ms */
    for (uint64_t walk = 0; (segment = shard_walk(shard, &walk)) != NULL;) {
        left += needs(self, number, segment) ? segment->used : 0;
    }
    TRY_IF(left, reserve(self->kept + number, left));
    for (uint64_t walk = 0; (segment = shard_walk(shard, &walk)) != NULL;) {
        if (needs(self, number, segment)) {
            if (kept >= most) {
                return 0;
            }
            TRY(keep(self->table, number, segment));
            kept += segment->room;
        }
    }
    return 1;
}

Reading frozen_read(Frozen *self, uint32_t wanted) {
    Reading reading = {NULL, 0};
    const Shard *shard = self->table->shards + wanted;
    const Kept *kept = self->kept + wanted;
    Segment *segment;
    reading.entries =
        PyMem_Malloc(((size_t)kept->count + shard->used + 1) * sizeof *reading.entries);
    if (reading.entries == NULL) {
        PyErr_NoMemory();
        return reading;
    }
    if (kept->count) {
        memcpy(reading.entries, kept->entries, kept->count * sizeof *kept->entries);
    }
    reading.count = kept->count;
    for (uint64_t walk = 0; (segment = shard_walk(shard, &walk)) != NULL;) {
        if (segment->stamp < self->number) {
            reading.count +=
                copy_entries(segment, self->ends[wanted], reading.entries + reading.count);
        }
    }
    reading.entries = entries_sorted(reading.entries, &reading.count);
    return reading;
}

void frozen_done(Frozen *self, uint32_t number) {
    self->pending[number] = 0;
    if (self->kept[number].entries != NULL) {
        self->table->changes++;
        drop_kept(self, number);
    }
}
