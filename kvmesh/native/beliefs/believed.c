/* Blocks of one worker, see believed.h. */
#include "base/arrays.h"
#include "beliefs/believed.h"

#define SMALLEST 8U
#define LARGEST (1U << 28)
#define SPLIT_BITS 6
#define SPLIT_AT 4096U

static inline uint32_t part_of(const Tree *self, uint64_t hash) {
    return self->part_bits ? (uint32_t)(hash >> (64 - SPLIT_BITS)) : 0;
}

/* Return where in its part a block is looked for first. */
static inline uint32_t home_of(const Tree *self, const Part *part, uint64_t hash) {
    return (uint32_t)(hash << self->part_bits >> (64 - __builtin_ctz(part->room)));
}

/* Return the place of a block, or the free one where it would be. */
static inline Believed *probe(const Tree *self, const Part *part, uint64_t block, uint64_t hash) {
    uint32_t last = part->room - 1, at = home_of(self, part, hash);
    while ((part->entries[at].lease | part->entries[at].followers) &&
           part->entries[at].block != block) {
        at = (at + 1) & last;
    }
    return part->entries + at;
}

static inline int is_used(const Believed *entry) { return (entry->lease | entry->followers) != 0; }

Believed *tree_find_hashed(const Tree *self, uint64_t block, uint64_t hash) {
    NEED_OR_NULL(self->parts);
    const Part *part = self->parts + part_of(self, hash);
    Believed *entry = part->room ? probe(self, part, block, hash) : NULL;
    return entry != NULL && is_used(entry) ? entry : NULL;
}

void tree_prefetch(const Tree *self, uint64_t hash) {
    const Part *part = self->parts + part_of(self, hash);
    __builtin_prefetch(part->entries + home_of(self, part, hash));
}

/* Return the room that so many entries need, 0 when there can be none. */
static uint32_t room_of(uint64_t used) {
    uint64_t room = SMALLEST;
    while (used * 4 > room * 3) {
        room *= 2;
    }
    return room > LARGEST ? 0 : (uint32_t)room;
}

static int rebuild(const Tree *self, Part *part, uint32_t room) {
    Part fresh = {.room = room, .used = part->used};
    fresh.entries = room ? PyMem_RawCalloc(room, sizeof *fresh.entries) : NULL;
    NEED(fresh.entries);
    for (uint32_t at = 0; at < part->room; at++) {
        if (is_used(part->entries + at)) {
            uint64_t block = part->entries[at].block;
            *probe(self, &fresh, block, mixed(block)) = part->entries[at];
        }
    }
    PyMem_RawFree(part->entries);
    *part = fresh;
    return 0;
}

static int grow(const Tree *self, Part *part, uint64_t more) {
    uint64_t used = part->used + more;
    return used * 4 <= (uint64_t)part->room * 3 ? 0 : rebuild(self, part, room_of(used));
}

static void free_parts(Part *parts, uint32_t count) {
    for (uint32_t number = 0; parts != NULL && number < count; number++) {
        PyMem_RawFree(parts[number].entries);
    }
    PyMem_RawFree(parts);
}

/* Go from one part to many; -1 with nothing changed. */
static int split_part(Tree *self) {
    Part whole = self->parts[0];
    Tree many = {.part_bits = SPLIT_BITS};
    uint32_t counts[1 << SPLIT_BITS] = {0}, failed = 0;
    many.parts = PyMem_RawCalloc(1 << SPLIT_BITS, sizeof *many.parts);
    NEED(many.parts);
    for (uint32_t at = 0; at < whole.room; at++) {
        counts[part_of(&many, mixed(whole.entries[at].block))] += is_used(whole.entries + at) != 0;
    }
    for (uint32_t number = 0; number < 1 << SPLIT_BITS; number++) {
        failed |= grow(&many, many.parts + number, counts[number]) < 0;
    }
    if (failed) {
        free_parts(many.parts, 1 << SPLIT_BITS);
        return -1;
    }
    for (uint32_t at = 0; at < whole.room; at++) {
        if (is_used(whole.entries + at)) {
            uint64_t block = whole.entries[at].block, hash = mixed(block);
            Part *part = many.parts + part_of(&many, hash);
            *probe(&many, part, block, hash) = whole.entries[at];
            part->used++;
        }
    }
    free_parts(self->parts, 1);
    self->parts = many.parts;
    self->part_bits = SPLIT_BITS;
    return 0;
}

static int reserve(Tree *self, const uint64_t *blocks, Py_ssize_t count) {
    if (self->parts == NULL && (self->parts = PyMem_RawCalloc(1, sizeof *self->parts)) == NULL) {
        return -1;
    }
    if (!self->part_bits) {
        if (self->used + (uint64_t)count <= SPLIT_AT) {
            return grow(self, self->parts, (uint64_t)count);
        }
        TRY(split_part(self));
    }
    if (count == 1) {
        return grow(self, self->parts + part_of(self, mixed(blocks[0])), 1);
    }
    uint64_t counts[1 << SPLIT_BITS] = {0};
    for (Py_ssize_t i = 0; i < count; i++) {
        counts[part_of(self, mixed(blocks[i]))]++;
    }
    for (uint32_t number = 0; number < 1U << SPLIT_BITS; number++) {
        TRY_IF(counts[number], grow(self, self->parts + number, counts[number]));
    }
    return 0;
}

int tree_reserve(Tree *self, const uint64_t *blocks, Py_ssize_t count) {
    if (count && reserve(self, blocks, count) < 0) {
        return no_memory();
    }
    return 0;
}

Believed *tree_enter(Tree *self, uint64_t block, uint64_t hash) {
    Part *part = self->parts + part_of(self, hash);
    Believed *entry = probe(self, part, block, hash);
    if (!is_used(entry)) {
        *entry = (Believed){.block = block};
        part->used++;
        self->used++;
    }
    return entry;
}

static void tree_forget_followers(Tree *self, Believed *entry) {
    uint32_t number = entry->followers;
    if (number) {
        Followers *list = self->followers + number;
        if (list->room) {
            PyMem_RawFree(list->blocks.many);
        }
        list->blocks.next = self->unused_followers;
        self->unused_followers = number;
        entry->followers = 0;
    }
}

void tree_drop(Tree *self, Believed *entry) {
    tree_forget_followers(self, entry);
    Part *part = self->parts + part_of(self, mixed(entry->block));
    uint32_t last = part->room - 1, hole = (uint32_t)(entry - part->entries);
    CLOSE_HOLE(hole, last, !is_used(part->entries + at),
               home_of(self, part, mixed(part->entries[at].block)),
               part->entries[hole] = part->entries[at]);
    part->entries[hole] = (Believed){0};
    part->used--;
    self->used--;
    if (part->used < part->room / 8 && part->room > SMALLEST) {
        rebuild(self, part, room_of(part->used)); /* without memory for it, it stays large */
    }
}

/* Return an unused number, which is used from now on; 0 without memory. */
static uint32_t new_followers(Tree *self) {
    uint32_t number = self->unused_followers;
    if (number) {
        self->unused_followers = self->followers[number].blocks.next;
        return number;
    }
    if (self->follower_count + 1 >= self->follower_room) {
        size_t room = self->follower_room ? (size_t)self->follower_room * 2 : 8;
        if (RAW_RESIZE(self->followers, room > LARGEST ? SIZE_MAX : (size_t)room) < 0) {
            return 0;
        }
        self->follower_room = (uint32_t)room;
    }
    return ++self->follower_count;
}

const uint64_t *tree_followers(const Tree *self, const Believed *entry, uint32_t *count) {
    *count = 0;
    if (!entry->followers) {
        return NULL;
    }
    const Followers *list = self->followers + entry->followers;
    *count = list->count;
    return list->room ? list->blocks.many : &list->blocks.one;
}

int tree_follow_alone(Tree *self, uint64_t parent, uint64_t block) {
    uint64_t hash = mixed(parent);
    const Believed *known = tree_find_hashed(self, parent, hash);
    uint32_t number = known == NULL || !known->followers ? new_followers(self) : known->followers;
    if (!number) {
        return -1;
    }
    Believed *entry = tree_enter(self, parent, hash);
    Followers *list = self->followers + number;
    if (entry->followers && list->room) {
        PyMem_RawFree(list->blocks.many);
    }
    entry->followers = number;
    *list = (Followers){.blocks = {.one = block}, .count = 1};
    return 0;
}

/* Leave out those that are not believed any more. */
static void prune(const Tree *self, Followers *list) {
    uint64_t *blocks = list->room ? list->blocks.many : &list->blocks.one;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        if (tree_lease(self, blocks[i])) {
            blocks[kept++] = blocks[i];
        }
    }
    list->count = kept;
}

int tree_follow(Tree *self, uint64_t parent, uint64_t block) {
    const Believed *known = tree_find(self, parent);
    if (known == NULL || !known->followers) {
        return tree_follow_alone(self, parent, block);
    }
    Followers *list = self->followers + known->followers;
    if (!(list->count & (list->count - 1))) {
        prune(self, list);
    }
    if (!list->room && !list->count) {
        list->blocks.one = block;
        list->count = 1;
        return 0;
    }
    if (!list->room || list->count == list->room) {
        uint64_t *before = list->room ? list->blocks.many : NULL, one = list->blocks.one;
        uint32_t room = list->room ? list->room * 2 : 4;
        uint64_t *grown = PyMem_RawRealloc(before, room * sizeof *grown);
        NEED_MEMORY(grown);
        if (!list->room) {
            grown[0] = one;
        }
        list->blocks.many = grown;
        list->room = room;
    }
    list->blocks.many[list->count++] = block;
    return 0;
}

void tree_clear(Tree *self) {
    for (uint32_t number = 0; self->parts != NULL && number < 1U << self->part_bits; number++) {
        const Part *part = self->parts + number;
        for (uint32_t at = 0; at < part->room; at++) {
            tree_forget_followers(self, part->entries + at);
        }
    }
    free_parts(self->parts, 1U << self->part_bits);
    PyMem_RawFree(self->followers);
    *self = (Tree){0};
}
