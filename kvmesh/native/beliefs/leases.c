/* One worker's believed blocks and when they end, see leases.h. */
#include "base/arrays.h"
#include "base/shell.h"
#include "beliefs/leases.h"

#define MOST_LEASES (1U << 28)

enum { CUT_AHEAD = 8 }; /* places in the tree that are fetched early */

static inline uint64_t *run_of(Lease *lease) {
    return lease->count > 1 ? lease->run.many : &lease->run.one;
}

/* Give a lease that has none a run of `count` blocks; -1 with MemoryError set. */
static int make_run(Lease *lease, const uint64_t *blocks, uint32_t count) {
    if (count == 1) {
        lease->run.one = blocks[0];
    } else {
        uint64_t *run = PyMem_RawMalloc(count * sizeof *run);
        NEED_MEMORY(run);
        memcpy(run, blocks, count * sizeof *run);
        lease->run.many = run;
    }
    lease->count = (uint16_t)count;
    return 0;
}

/* Leave `count` of the blocks of a run, from `low` on. */
static void shorten_run(Lease *lease, uint32_t low, uint32_t count) {
    uint64_t *run = run_of(lease);
    if (lease->count == count) {
        return;
    }
    if (count == 1) {
        lease->run.one = run[low];
        PyMem_RawFree(run);
    } else {
        memmove(run, run + low, count * sizeof *run);
        uint64_t *smaller = PyMem_RawRealloc(run, count * sizeof *run);
        lease->run.many = smaller == NULL ? run : smaller;
    }
    lease->count = (uint16_t)count;
}

/* Make room for one more lease, so that `new_lease` cannot fail; -1 with MemoryError set. */
static int reserve_lease(Leases *self) {
    if (self->unused_lease || self->lease_count + 1 < self->lease_room) {
        return 0;
    }
    size_t room = self->lease_room ? (size_t)self->lease_room * 2 : 8;
    TRY(RAW_RESIZE(self->leases, room > MOST_LEASES ? SIZE_MAX : (size_t)room));
    self->lease_room = (uint32_t)room;
    return 0;
}

static uint32_t new_lease(Leases *self, const Lease *made) {
    uint32_t number = self->unused_lease;
    if (number) {
        self->unused_lease = self->leases[number].run.next;
    } else {
        number = ++self->lease_count;
    }
    self->leases[number] = *made;
    self->leases[number].serial = self->serial++;
    return number;
}

static void free_lease(Leases *self, uint32_t number) {
    Lease *lease = self->leases + number;
    if (lease->count > 1) {
        PyMem_RawFree(lease->run.many);
    }
    lease->count = 0;
    lease->run.next = self->unused_lease;
    self->unused_lease = number;
}

/* Return where what ends then is, or would be, among the dues. */
static Py_ssize_t place_of(const Leases *self, double until) {
    Py_ssize_t low = self->first_due, high = self->first_due + self->due_count;
    if (self->due_count && self->dues[high - 1].until < until) {
        return high; /* the usual new one */
    }
    BISECT(low, high, self->dues[middle].until < until);
    return low;
}

/* Make room for one more due; -1 with MemoryError set. */
static int reserve_due(Leases *self) {
    if (self->first_due + self->due_count < self->due_room) {
        return 0;
    }
    if (self->first_due > self->due_count) {
        memmove(self->dues, self->dues + self->first_due,
                (size_t)self->due_count * sizeof *self->dues);
        self->first_due = 0;
        return 0;
    }
    return RAW_GROW(self->dues, self->due_room, self->due_room, 4);
}

/* Return what ends then, with room for one more; NULL with MemoryError set. */
static Due *due_at(Leases *self, double until, int *fresh) {
    TRY_OR_NULL(reserve_due(self));
    Py_ssize_t place = place_of(self, until), end = self->first_due + self->due_count;
    Due *due = self->dues + place;
    if (place == end || due->until != until) {
        memmove(due + 1, due, (size_t)(end - place) * sizeof *due);
        *due = (Due){.until = until};
        self->due_count++;
        *fresh = 1;
    }
    return due;
}

static void drop_due(Leases *self, Due *due) {
    PyMem_RawFree(due->items);
    Due *end = self->dues + self->first_due + self->due_count;
    self->due_count--;
    if (due == self->dues + self->first_due) {
        self->first_due = self->due_count ? self->first_due + 1 : 0;
    } else {
        memmove(due, due + 1, (size_t)(end - due - 1) * sizeof *due);
    }
}

static int reserve_item(Due *due) {
    if (due->count < due->room) {
        return 0;
    }
    uint32_t room = due->room ? due->room * 2 : 4;
    TRY(RAW_RESIZE(due->items, room > MOST_LEASES * 2 ? SIZE_MAX : (size_t)room));
    due->room = room;
    return 0;
}

static inline void add_item(const Leases *self, Due *due, uint32_t number) {
    due->items[due->count++] = (DueLease){number, self->leases[number].serial};
}

/* Return the lease that an item of a due stands for; 0 when it was extended or given up since. */
static uint32_t still_due(const Leases *self, const Due *due, DueLease item) {
    if (item.lease > self->lease_count) {
        return 0;
    }
    const Lease *lease = self->leases + item.lease;
    int still = lease->count && lease->serial == item.serial && lease->until == due->until;
    return still ? item.lease : 0;
}

/* Make the first `count` blocks of a lease one of their own; its number, 0 with MemoryError set and
 * nothing changed. The rest keeps its number, and with it its turn. */
static uint32_t split(Leases *self, uint32_t number, uint32_t count) {
    if (reserve_lease(self) < 0) {
        return 0;
    }
    Lease *lease = self->leases + number;
    Lease made = {.until = lease->until, .stands = lease->stands};
    const uint64_t *run = run_of(lease);
    if (make_run(&made, run, count) < 0) {
        return 0;
    }
    if (tree_reserve(&self->tree, run + count - 1, 1) < 0 ||
        tree_follow(&self->tree, run[count - 1], run[count]) < 0) {
        if (count > 1) {
            PyMem_RawFree(made.run.many);
        }
        return 0;
    }
    uint32_t first = new_lease(self, &made);
    for (uint32_t i = 0; i < count; i++) {
        Believed *entry = tree_find(&self->tree, run[i]);
        if (entry != NULL && entry->lease == number) {
            entry->lease = first;
        }
    }
    shorten_run(lease, count, lease->count - count);
    return first;
}

/* Return how many blocks from `place` on a lease covers, 0 when two blocks have one hash. */
static Py_ssize_t covered(Lease *lease, const uint64_t *blocks, Py_ssize_t left) {
    const uint64_t *run = run_of(lease);
    Py_ssize_t count = lease->count, same = 0;
    if (count <= left && blocks[count - 1] == run[count - 1]) {
        return count;
    }
    while (same < left && same < count && blocks[same] == run[same]) {
        same++;
    }
    return same;
}

/* Extend the leases of `blocks` that end earlier; return where they are believed no more, -1 with
 * MemoryError set. `due` is what ends then, once something does. */
static Py_ssize_t renew(Leases *self, const uint64_t *blocks, Py_ssize_t size, double until,
                        Due **due, int *new_end) {
    Py_ssize_t place = 0;
    self->before = -INFINITY;
    while (place < size) {
        uint32_t number = tree_lease(&self->tree, blocks[place]);
        if (!number) {
            break;
        }
        Lease *lease = self->leases + number;
        Py_ssize_t count = covered(lease, blocks + place, size - place);
        if (!count) {
            break;
        }
        self->before = lease->until;
        if (lease->until < until) {
            if (*due == NULL && (*due = due_at(self, until, new_end)) == NULL) {
                return -1;
            }
            TRY(reserve_item(*due));
            if (count < (Py_ssize_t)lease->count &&
                !(number = split(self, number, (uint32_t)count))) {
                return -1;
            }
            self->leases[number].until = until;
            add_item(self, *due, number);
        }
        place += count;
    }
    return place;
}

/* Lease one run of blocks, none of them believed yet, for which there is room in the tree; -1 with
 * MemoryError set and nothing changed. */
static int add_run(Leases *self, const uint64_t *blocks, uint32_t count, uint16_t stands, Due *due,
                   const Table *table) {
    Lease made = {.until = due->until, .stands = stands};
    if (reserve_item(due) < 0 || reserve_lease(self) < 0 || make_run(&made, blocks, count) < 0) {
        return -1;
    }
    uint32_t number = new_lease(self, &made);
    uint64_t hashes[RUN_BLOCKS];
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = mixed(blocks[i]);
        tree_prefetch(&self->tree, hashes[i]);
    }
    for (uint32_t i = 0; i < count; i++) { /* the next to look there is the caller */
        shard_prefetch(table->shards + (blocks[i] & 255), hashes[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        Believed *entry = tree_enter(&self->tree, blocks[i], hashes[i]);
        self->stands += entry->lease ? 0 : stands;
        entry->lease = number;
    }
    add_item(self, due, number);
    return 0;
}

/* Lease `blocks` from `low` on, none of them believed yet; -1 with MemoryError set. */
static int add(Leases *self, const uint64_t *blocks, Py_ssize_t low, Py_ssize_t size, Due *due,
               const Table *table) {
    Tree *tree = &self->tree;
    if (low && (tree_reserve(tree, blocks + low - 1, 1) < 0 ||
                tree_follow(tree, blocks[low - 1], blocks[low]) < 0)) {
        return -1;
    }
    TRY(tree_reserve(tree, blocks + low, size - low));
    for (Py_ssize_t start = low, count; start < size; start += count) {
        int whole = start < WHOLE_BLOCKS;
        count = whole && WHOLE_BLOCKS < size ? WHOLE_BLOCKS - start : size - start;
        count = count < RUN_BLOCKS ? count : RUN_BLOCKS;
        if (add_run(self, blocks + start, (uint32_t)count, whole ? 1 : self->stride, due, table) < 0 ||
            (start > low && tree_follow_alone(tree, blocks[start - 1], blocks[start]) < 0)) {
            return -1;
        }
    }
    return 0;
}

Py_ssize_t leases_extend(Leases *self, const uint64_t *blocks, Py_ssize_t size, double until,
                         const Table *table, int *new_end) {
    Due *due = NULL;
    *new_end = 0;
    Py_ssize_t low = renew(self, blocks, size, until, &due, new_end);
    if (low == size) {
        return low;
    }
    int failed = low < 0 || (due == NULL && (due = due_at(self, until, new_end)) == NULL) ||
                 add(self, blocks, low, size, due, table) < 0;
    if (failed && *new_end && !due->count) {
        drop_due(self, due);
        *new_end = 0;
    }
    return failed ? -1 : low;
}

/* Believe all but the first `kept` blocks of a lease no longer, and append them to `gone`, for which
 * there is room. With `waiting` who follows them is appended there; there is room for that, too. */
static void cut(Leases *self, uint32_t number, uint32_t kept, Blocks *gone, Blocks *waiting) {
    Lease *lease = self->leases + number;
    const uint64_t *run = run_of(lease);
    uint64_t hashes[CUT_AHEAD];
    for (uint32_t i = kept; i < lease->count && i < kept + CUT_AHEAD; i++) {
        hashes[i % CUT_AHEAD] = mixed(run[i]);
        tree_prefetch(&self->tree, hashes[i % CUT_AHEAD]);
    }
    for (uint32_t i = kept; i < lease->count; i++) {
        uint64_t hash = hashes[i % CUT_AHEAD];
        if (i + CUT_AHEAD < lease->count) {
            hashes[i % CUT_AHEAD] = mixed(run[i + CUT_AHEAD]);
            tree_prefetch(&self->tree, hashes[i % CUT_AHEAD]);
        }
        Believed *entry = tree_find_hashed(&self->tree, run[i], hash);
        /* Of two blocks with one hash only the later one is found by its lease. */
        if (entry == NULL || entry->lease != number) {
            continue;
        }
        gone->items[gone->count++] = run[i];
        self->stands -= lease->stands;
        if (waiting != NULL) {
            uint32_t count;
            const uint64_t *following = tree_followers(&self->tree, entry, &count);
            for (uint32_t one = 0; one < count; one++) {
                waiting->items[waiting->count++] = following[one];
            }
        }
        tree_drop(&self->tree, entry);
    }
    if (kept) {
        shorten_run(lease, 0, kept);
    } else {
        free_lease(self, number);
    }
}

static void reverse(uint64_t *items, Py_ssize_t count) {
    for (Py_ssize_t low = 0, high = count - 1; low < high; low++, high--) {
        uint64_t one = items[low];
        items[low] = items[high];
        items[high] = one;
    }
}

/* Give memory back where nothing is left; dues may go on naming what was. */
static void forget_leases(Leases *self) {
    for (uint32_t number = 1; number <= self->lease_count; number++) {
        if (self->leases[number].count > 1) {
            PyMem_RawFree(self->leases[number].run.many);
        }
    }
    PyMem_RawFree(self->leases);
    self->leases = NULL;
    self->lease_count = self->lease_room = self->unused_lease = 0;
    self->stands = 0;
    tree_clear(&self->tree);
}

int leases_take(Leases *self, long long most, Blocks *gone) {
    if (!self->due_count) {
        return 0;
    }
    Due *due = self->dues + self->first_due;
    Py_ssize_t before = gone->count;
    while (due->count && gone->count - before < most) {
        uint32_t number = still_due(self, due, due->items[due->count - 1]);
        if (!number) {
            due->count--;
            continue;
        }
        long long count = self->leases[number].count, left = most - (gone->count - before);
        TRY(blocks_reserve(gone, (Py_ssize_t)count));
        if (count <= left) {
            due->count--;
        }
        Py_ssize_t from = gone->count;
        cut(self, number, count > left ? (uint32_t)(count - left) : 0, gone, NULL);
        reverse(gone->items + from, gone->count - from);
    }
    if (!due->count) {
        drop_due(self, due);
    }
    if (!self->tree.used) {
        forget_leases(self);
    }
    return 0;
}

/* Return how many blocks follow those of a lease from `kept` on. */
static Py_ssize_t followers_behind(const Leases *self, Lease *lease, uint32_t kept) {
    Py_ssize_t total = 0;
    for (uint32_t i = kept, count; i < lease->count; i++) {
        const Believed *entry = tree_find(&self->tree, run_of(lease)[i]);
        if (entry != NULL) {
            tree_followers(&self->tree, entry, &count);
            total += count;
        }
    }
    return total;
}

int leases_revoke(Leases *self, const uint64_t *blocks, Py_ssize_t count, Blocks *gone) {
    Blocks *waiting = &self->waiting;
    waiting->count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!tree_lease(&self->tree, blocks[i])) {
            continue;
        }
        TRY(blocks_reserve(waiting, 1));
        waiting->items[waiting->count++] = blocks[i];
    }
    while (waiting->count) {
        uint64_t block = waiting->items[--waiting->count];
        uint32_t number = tree_lease(&self->tree, block), kept = 0;
        if (!number) {
            continue;
        }
        Lease *lease = self->leases + number;
        while (kept < lease->count && run_of(lease)[kept] != block) {
            kept++;
        }
        TRY(blocks_reserve(gone, (Py_ssize_t)(lease->count - kept)));
        TRY(blocks_reserve(waiting, followers_behind(self, lease, kept)));
        cut(self, number, kept, gone, waiting);
    }
    if (!self->tree.used) {
        forget_leases(self);
    }
    return 0;
}

void leases_clear(Leases *self) {
    forget_leases(self);
    slots_clear(&self->slots);
    for (Py_ssize_t i = 0; i < self->due_count; i++) {
        PyMem_RawFree(self->dues[self->first_due + i].items);
    }
    RAW_FREE_ALL(self->dues, self->waiting.items);
    self->dues = NULL;
    self->waiting = (Blocks){0};
    self->first_due = self->due_count = self->due_room = 0;
}

Leases *leases_make(uint32_t slot) {
    Holding *holding = holding_make(slot);
    Leases *self = holding == NULL ? NULL : (Leases *)leases_type.tp_alloc(&leases_type, 0);
    if (self == NULL) {
        Py_XDECREF(holding);
        return NULL;
    }
    self->holding = holding;
    self->slot = slot;
    self->stride = 1;
    self->limit = -1;
    return self;
}

DEALLOC_AFTER(Leases, leases, leases_clear(self), holding)

PyTypeObject leases_type = {
    INNER_TYPE("Leases", Leases, leases),
};
