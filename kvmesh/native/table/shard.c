/* One part of a table, see shard.h. */
#include "table/shard.h"

#define SEGMENT_ROOM 1024U /* 16 KiB: what is larger is split where its hashes allow it */
#define SPARSE 64U  /* a directory has no more segments than one for so many blocks */
#define DENSE 4U    /* so few came for each entry that is there */
#define DIGITS (1U << DIGIT_BITS)

/* Return the number of the least room for so many entries, above ROOMS when there is none. */
static uint32_t room_number(uint64_t used) {
    uint32_t number = 0;
    while (number <= ROOMS && used * 4 > 3ULL << room_bits(number)) {
        number++;
    }
    return number;
}

/* Return that room, 0 when there can be none. */
static uint32_t room_of(uint64_t used) {
    uint32_t number = room_number(used);
    return number > ROOMS ? 0 : 1U << room_bits(number);
}

/* Return an empty segment; NULL without memory, and no error set. */
static Segment *segment_new(uint32_t room, uint32_t depth, uint32_t stamp) {
    Segment *segment =
        room ? PyMem_RawCalloc(1, sizeof *segment + room * sizeof *segment->entries) : NULL;
    if (segment != NULL) {
        segment->room = room;
        segment->depth = depth;
        segment->stamp = stamp;
    }
    return segment;
}

/* Make a directory of 2^depth; -1 without memory, and nothing changed. */
static int directory_new(Shard *self, uint32_t depth) {
    self->homes = PyMem_RawMalloc(sizeof *self->homes << depth);
    self->depth = depth;
    return self->homes == NULL ? -1 : 0;
}

/* Enter a segment at one place of the directory. */
static void enter_at(Shard *self, uint64_t place, Segment *segment) {
    self->homes[place] = (Home)segment | room_number((uint64_t)segment->room * 3 / 4);
}

static uint64_t hash_of(const Entry *entry, uint32_t shard) {
    return mixed((entry->key & ~LOW_BYTE) | shard);
}

/* Copy an entry to where it belongs; there is room. */
static Entry *place(Segment *segment, const Entry *entry, uint64_t hash) {
    uint32_t last = segment->room - 1, at = home_of(hash, last);
    while (segment->entries[at].set) {
        at = (at + 1) & last;
    }
    segment->entries[at] = *entry;
    segment->used++;
    return segment->entries + at;
}

/* Enter a segment in place of the one that the hash belongs to. */
static void enter(Shard *self, uint64_t hash, Segment *segment) {
    uint64_t width = 1ULL << (self->depth - segment->depth);
    uint64_t first = shard_place(self, hash) & ~(width - 1);
    for (uint64_t i = 0; i < width; i++) {
        enter_at(self, first + i, segment);
    }
}

/* Give one segment the room of another size; -1 without memory. */
static int regrow(Shard *self, Segment *segment, uint64_t hash, uint32_t shard) {
    Segment *grown = segment_new(room_of(segment->used + 1ULL), segment->depth, segment->stamp);
    NEED(grown);
    for (uint32_t at = 0; at < segment->room; at++) {
        if (segment->entries[at].set) {
            place(grown, segment->entries + at, hash_of(segment->entries + at, shard));
        }
    }
    enter(self, hash, grown);
    PyMem_RawFree(segment);
    return 0;
}

int segment_fit(Shard *self, uint32_t number, Segment *segment, uint64_t hash) {
    if (segment->room == 1U << FEWEST || 4 * (uint64_t)segment->used >= segment->room) {
        return 0;
    }
    return regrow(self, segment, hash, number) < 0 ? no_memory() : 0;
}

/* Let every place in the directory be two; -1 without memory. */
static int deepen(Shard *self) {
    Shard wider = *self;
    TRY(directory_new(&wider, self->depth + 1));
    for (uint64_t i = 0; i >> wider.depth == 0; i++) {
        wider.homes[i] = self->homes[i / 2];
    }
    PyMem_RawFree(self->homes);
    *self = wider;
    return 0;
}

/* Split a segment by the next bit of its blocks' hashes; -1 without memory. */
static int split(Shard *self, Segment *segment, uint64_t hash, uint32_t shard) {
    uint32_t bit = 63 - segment->depth, counts[2] = {0, 0}, rooms[2];
    TRY_IF(segment->depth == self->depth, deepen(self));
    for (uint32_t at = 0; segment->room > SEGMENT_ROOM && at < segment->room; at++) {
        const Entry *entry = segment->entries + at;
        counts[hash_of(entry, shard) >> bit & 1] += entry->set != 0;
    }
    Segment *halves[2];
    for (int side = 0; side < 2; side++) {
        rooms[side] = room_of(counts[side] + 1ULL);
        rooms[side] = rooms[side] < SEGMENT_ROOM ? SEGMENT_ROOM : rooms[side];
        halves[side] = segment_new(rooms[side], segment->depth + 1, segment->stamp);
    }
    if (halves[0] == NULL || halves[1] == NULL) {
        RAW_FREE_ALL(halves[0], halves[1]);
        return -1;
    }
    for (uint32_t at = 0; at < segment->room; at++) {
        const Entry *entry = segment->entries + at;
        if (entry->set) {
            uint64_t own = hash_of(entry, shard);
            place(halves[own >> bit & 1], entry, own);
        }
    }
    enter(self, hash & ~(1ULL << bit), halves[0]);
    enter(self, hash | 1ULL << bit, halves[1]);
    PyMem_RawFree(segment);
    return 0;
}

/* Make room in a full segment. Whoever makes up hashes whose upper bits are alike gets segments that
 * are larger, not a directory that is. -1 without memory. */
static int make_room(Shard *self, Segment *segment, uint64_t hash, uint32_t shard) {
    if (segment->room >= SEGMENT_ROOM &&
        (segment->depth < self->depth || (uint64_t)SPARSE << (self->depth + 1) <= self->used)) {
        return split(self, segment, hash, shard);
    }
    return regrow(self, segment, hash, shard);
}

/* Make the first segment; -1 without memory. */
static int begin(Shard *self) {
    Segment *first = segment_new(1U << FEWEST, 0, 0);
    if (first == NULL || directory_new(self, 0) < 0) {
        PyMem_RawFree(first);
        return -1;
    }
    enter_at(self, 0, first);
    return 0;
}

Entry *shard_insert(Shard *self, uint64_t block, uint64_t hash) {
    uint32_t shard = (uint32_t)(block & LOW_BYTE);
    int failed = self->homes == NULL && begin(self) < 0;
    Segment *segment = failed ? NULL : shard_segment(self, hash);
    while (!failed && ((uint64_t)segment->used + 1) * 4 > (uint64_t)segment->room * 3) {
        failed = make_room(self, segment, hash, shard) < 0; /* all may be on one side */
        segment = shard_segment(self, hash);
    }
    if (failed) {
        no_memory();
        return NULL;
    }
    Entry entry = {.key = (block & ~LOW_BYTE) | (self->next >> 32 & LOW_BYTE),
                   .order = (uint32_t)self->next};
    self->next++;
    self->used++;
    return place(segment, &entry, hash);
}

void segment_remove(Shard *self, uint32_t number, Segment *segment, Entry *entry) {
    uint32_t last = segment->room - 1, hole = (uint32_t)(entry - segment->entries);
    CLOSE_HOLE(hole, last, !segment->entries[at].set,
               home_of(hash_of(segment->entries + at, number), last),
               segment->entries[hole] = segment->entries[at]);
    segment->entries[hole] = (Entry){0};
    segment->used--;
    self->used--;
}

void shard_remove(Shard *self, uint64_t block, uint64_t hash, Entry *entry) {
    segment_remove(self, (uint32_t)(block & LOW_BYTE), shard_segment(self, hash), entry);
}

/* Give an empty shard segments for so many blocks; -1 without memory. */
static int furnish(Shard *self, uint64_t blocks) {
    uint32_t depth = 0;
    while (blocks * 8 > (uint64_t)SEGMENT_ROOM * 5 << depth) { /* hardly any will be split */
        depth++;
    }
    TRY(directory_new(self, depth));
    for (uint64_t i = 0; i >> depth == 0; i++) {
        Segment *segment = segment_new(depth ? SEGMENT_ROOM : room_of(blocks), depth, 0);
        if (segment == NULL) {
            while (i--) {
                PyMem_RawFree(home_segment(self->homes[i]));
            }
            PyMem_RawFree(self->homes);
            self->homes = NULL;
            return -1;
        }
        enter_at(self, i, segment);
    }
    return 0;
}

int shard_resize(Shard *self, uint32_t number, uint32_t blocks) {
    Shard fresh = {.next = self->next};
    uint64_t count = (uint64_t)self->used + blocks;
    int failed = count && furnish(&fresh, count) < 0;
    Segment *segment;
    for (uint64_t walk = 0; !failed && (segment = shard_walk(self, &walk)) != NULL;) {
        for (uint32_t at = 0; !failed && at < segment->room; at++) {
            const Entry *entry = segment->entries + at;
            if (entry->set) {
                uint64_t block = (entry->key & ~LOW_BYTE) | number;
                Entry *again = shard_insert(&fresh, block, mixed(block));
                failed = again == NULL;
                if (!failed) {
                    *again = *entry;
                }
            }
        }
    }
    if (failed) {
        shard_free(&fresh);
        return no_memory();
    }
    fresh.next = self->next;
    shard_free(self);
    *self = fresh;
    return 0;
}

enum { SPANNING, COUNTING, PLACING };

int sorting_open(Sorting *self, Entry *entries, uint32_t count) {
    *self = (Sorting){.from = entries, .count = count, .least = UINT64_MAX};
    self->to = PyMem_Malloc(((size_t)count + 1) * sizeof *self->to);
    NEED_MEMORY(self->to);
    return 0;
}

/* Find the least and the most order of entries; and have the memory they go to, which all at once would
 * take some ms. */
static void span(Sorting *self, uint32_t end) {
    memset(self->to + self->at, 0, (end - self->at) * sizeof *self->to);
    for (; self->at < end; self->at++) {
        uint64_t order = order_of(self->from + self->at);
        self->least = order < self->least ? order : self->least;
        self->most = order > self->most ? order : self->most;
    }
}

static uint32_t digit_of(const Sorting *self, const Entry *entry) {
    return (uint32_t)((order_of(entry) - self->least) >> self->shift) & (DIGITS - 1);
}

static void count_digits(Sorting *self, uint32_t end) {
    for (; self->at < end; self->at++) {
        self->starts[digit_of(self, self->from + self->at) + 1]++;
    }
}

/* Put entries to where those of their digit are, in their order before. */
static void place_digits(Sorting *self, uint32_t end) {
    for (; self->at < end; self->at++) {
        const Entry *entry = self->from + self->at;
        self->to[self->starts[digit_of(self, entry)]++] = *entry;
    }
}

/* Go on with the next digit, or not: return whether there is none. */
static int next_digit(Sorting *self, uint32_t shift) {
    self->shift = shift;
    self->stage = COUNTING;
    memset(self->starts, 0, sizeof self->starts);
    return self->count == 0 || shift > 63 || !((self->most - self->least) >> shift);
}

int sorting_step(Sorting *self, uint32_t most) {
    uint32_t left = self->count - self->at, end = self->at + (left < most ? left : most);
    if (self->stage == SPANNING) {
        span(self, end);
    } else if (self->stage == COUNTING) {
        count_digits(self, end);
    } else {
        place_digits(self, end);
    }
    if (end < self->count) {
        return 0;
    }
    self->at = 0;
    if (self->stage == SPANNING) {
        return next_digit(self, 0);
    }
    if (self->stage == COUNTING) {
        for (uint32_t digit = 1; digit < DIGITS; digit++) {
            self->starts[digit] += self->starts[digit - 1];
        }
        self->stage = PLACING;
        return 0;
    }
    Entry *sorted = self->to;
    self->to = self->from;
    self->from = sorted;
    return next_digit(self, self->shift + DIGIT_BITS);
}

/* Sort entries of which most that came are still there: 3 times as fast. Return how many are left; 0
 * without memory. */
static uint32_t sort_dense(const Sorting *self, uint64_t span) {
    uint32_t *places = PyMem_Calloc((size_t)span + 1, sizeof *places), count = 0;
    if (places == NULL) {
        return 0;
    }
    for (uint32_t i = self->count; i--;) {
        places[order_of(self->from + i) - self->least] = i + 1;
    }
    for (uint64_t order = 0; order <= span; order++) {
        if (places[order]) {
            self->to[count++] = self->from[places[order] - 1];
        }
    }
    PyMem_Free(places);
    return count;
}

/* Leave the first of entries of one order; return how many are left. */
static uint32_t drop_repeated(Entry *entries, uint32_t count) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!left || order_of(entries + i) != order_of(entries + left - 1)) {
            entries[left++] = entries[i];
        }
    }
    return left;
}

Entry *entries_sorted(Entry *entries, uint32_t *count) {
    Sorting sorting;
    if (sorting_open(&sorting, entries, *count) < 0) {
        PyMem_Free(entries);
        return NULL;
    }
    int done = sorting_step(&sorting, UINT32_MAX); /* now the span is known */
    uint64_t spanned = *count ? sorting.most - sorting.least : 0;
    if (!done && spanned < DENSE * (uint64_t)*count) {
        uint32_t left = sort_dense(&sorting, spanned);
        if (left) {
            *count = left;
            PyMem_Free(sorting.from);
            return sorting.to;
        }
    }
    while (!done) {
        done = sorting_step(&sorting, UINT32_MAX);
    }
    *count = drop_repeated(sorting.from, *count);
    PyMem_Free(sorting.to);
    return sorting.from;
}

void shard_free(Shard *self) {
    Segment *segment;
    for (uint64_t walk = 0; (segment = shard_walk(self, &walk)) != NULL;) {
        PyMem_RawFree(segment);
    }
    PyMem_RawFree(self->homes);
    *self = (Shard){.next = self->next};
}
