/* Records found by a key: see keyed.h. */
#include "base/arrays.h"
#include "engines/keyed.h"

#define FEWEST_PLACES 8
#define AHEAD 8

void keyed_init(Keyed *self) {
    memset(self, 0, sizeof *self);
    self->unused = NO_RECORD;
}

void keyed_free(Keyed *self) {
    for (uint32_t segment = 0; segment < self->segment_count; segment++) {
        PyMem_RawFree(self->segments[segment]);
    }
    PyMem_RawFree(self->segments);
    for (int part = 0; part < KEYED_PARTS; part++) {
        PyMem_RawFree(self->parts[part].places);
    }
    keyed_init(self);
}

/* Make room for one more segment; -1 with MemoryError set. */
static int add_segment(Keyed *self) {
    TRY(RAW_GROW(self->segments, self->segment_count, self->segment_room, 16));
    KeyedRecord *segment = PyMem_RawMalloc(KEYED_SEGMENT * sizeof *segment);
    NEED_MEMORY(segment);
    self->segments[self->segment_count++] = segment;
    return 0;
}

uint32_t keyed_make(Keyed *self, uint64_t key) {
    uint32_t number = self->unused;
    if (number != NO_RECORD) {
        self->unused = keyed_at(self, number)->one;
    } else {
        if (self->next == NO_RECORD - 1) {
            PyErr_SetString(PyExc_MemoryError, "an engine's cache is followed to 2^25 blocks");
            return NO_RECORD;
        }
        if (self->next == self->segment_count * KEYED_SEGMENT && add_segment(self) < 0) {
            return NO_RECORD;
        }
        number = self->next++;
    }
    *keyed_at(self, number) = (KeyedRecord){.key = key};
    return number;
}

void keyed_drop(Keyed *self, uint32_t number) {
    keyed_at(self, number)->one = self->unused;
    self->unused = number;
}

/* Put an entry where its key's hash says, or behind what is there already. */
static void place(KeyedPart *part, uint64_t hash, uint32_t number) {
    uint32_t at = keyed_home(part, hash);
    while (part->places[at] != UINT32_MAX) {
        at = at + 1 == part->room ? 0 : at + 1;
    }
    part->places[at] = keyed_tag(hash) | number;
}

static int grow(Keyed *self, KeyedPart *part) {
    uint32_t room = part->room < FEWEST_PLACES ? FEWEST_PLACES : 2 * part->room;
    KeyedPart grown = {PyMem_RawMalloc(room * sizeof *grown.places), room, part->used};
    NEED_MEMORY(grown.places);
    memset(grown.places, 0xFF, room * sizeof *grown.places);
    for (uint32_t at = 0; at < part->room; at++) {
        uint32_t later = part->places[at + AHEAD < part->room ? at + AHEAD : at];
        if (later != UINT32_MAX) { /* keys lie anywhere: to wait for each takes four times as long */
            __builtin_prefetch(keyed_at(self, later & NO_RECORD));
        }
        if (part->places[at] != UINT32_MAX) {
            uint32_t number = part->places[at] & NO_RECORD;
            place(&grown, mixed(keyed_at(self, number)->key), number);
        }
    }
    PyMem_RawFree(part->places);
    *part = grown;
    return 0;
}

int keyed_enter(Keyed *self, uint32_t number) {
    uint64_t hash = mixed(keyed_at(self, number)->key);
    KeyedPart *part = self->parts + (hash >> 56);
    TRY_IF(part->used >= part->room - part->room / 8, grow(self, part));
    place(part, hash, number);
    part->used++;
    return 0;
}

/* Move entries back over a hole, so that each stays reachable from its home. */
static void close_hole(const Keyed *self, KeyedPart *part, uint32_t hole) {
    uint32_t room = part->room, at = hole;
    for (;;) {
        at = at + 1 == room ? 0 : at + 1;
        uint32_t entry = part->places[at];
        if (entry == UINT32_MAX) {
            break;
        }
        uint64_t hash = mixed(keyed_at(self, entry & NO_RECORD)->key);
        uint32_t home = keyed_home(part, hash);
        uint32_t from_home = at >= home ? at - home : at + room - home;
        uint32_t from_hole = at >= hole ? at - hole : at + room - hole;
        if (from_home >= from_hole) {
            part->places[hole] = entry;
            hole = at;
        }
    }
    part->places[hole] = UINT32_MAX;
}

void keyed_leave(Keyed *self, uint32_t number, uint32_t instead) {
    uint64_t hash = mixed(keyed_at(self, number)->key);
    KeyedPart *part = self->parts + (hash >> 56);
    uint32_t at = keyed_home(part, hash), entry = keyed_tag(hash) | number;
    while (part->places[at] != entry) {
        at = at + 1 == part->room ? 0 : at + 1;
    }
    if (instead != NO_RECORD) {
        part->places[at] = keyed_tag(hash) | instead;
        return;
    }
    part->used--;
    close_hole(self, part, at);
}

void column_init(Column *self, uint32_t fill) { *self = (Column){.fill = fill}; }

void column_free(Column *self) {
    for (uint32_t segment = 0; segment < self->segment_room; segment++) {
        PyMem_RawFree(self->segments[segment]);
    }
    PyMem_RawFree(self->segments);
    column_init(self, self->fill);
}

static int make_column_room(Column *self, uint32_t segment) {
    uint32_t room = self->segment_room ? self->segment_room : 16;
    while (room <= segment) {
        room *= 2;
    }
    TRY(RAW_RESIZE(self->segments, room));
    memset(self->segments + self->segment_room, 0,
           (room - self->segment_room) * sizeof *self->segments);
    self->segment_room = room;
    return 0;
}

uint32_t *column_make(Column *self, uint32_t number) {
    uint32_t segment = number / KEYED_SEGMENT;
    if (segment >= self->segment_room && make_column_room(self, segment) < 0) {
        return NULL;
    }
    uint32_t *values = self->segments[segment];
    if (values == NULL) {
        values = PyMem_RawMalloc(KEYED_SEGMENT * sizeof *values);
        NEED_MEMORY_OR_NULL(values);
        for (uint32_t at = 0; at < KEYED_SEGMENT; at++) {
            values[at] = self->fill;
        }
        self->segments[segment] = values;
    }
    return values + number % KEYED_SEGMENT;
}

int column_copy(Column *to, const Column *from) {
    for (uint32_t segment = 0; segment < from->segment_room; segment++) {
        if (from->segments[segment] != NULL) {
            uint32_t *made = column_make(to, segment * KEYED_SEGMENT);
            NEED(made);
            memcpy(made, from->segments[segment], KEYED_SEGMENT * sizeof *made);
        }
    }
    return 0;
}
