/* Events that keep what readers know prefix-closed: core.engines.kv_events.closure, see contents.h. */
#include "engines/contents.h"

#include <stdlib.h>

#define HASH_BYTES 8

/* Steps collected into the fewest events. */
typedef struct {
    Contents *contents;
    const EventTypes *types;
    PyObject *events;
    int tier;
    uint64_t parent; /* before the run */
} Runs;

static PyObject *packed(const uint64_t *hashes, Py_ssize_t count) {
    return PyBytes_FromStringAndSize((const char *)hashes, count * HASH_BYTES);
}

static int runs_flush(Runs *self) {
    Blocks *run = &self->contents->run;
    if (run->count == 0) {
        return 0;
    }
    PyObject *parent = PyLong_FromUnsignedLongLong(self->parent);
    PyObject *hashes = parent == NULL ? NULL : packed(run->items, run->count);
    PyObject *tier = hashes == NULL ? NULL : PyLong_FromLong(self->tier);
    PyObject *parts[] = {parent, hashes, tier};
    PyObject *event = tier == NULL ? NULL : PyObject_Vectorcall(self->types->stored, parts, 3, NULL);
    XDECREF_ALL(parent, hashes, tier);
    run->count = 0;
    return list_add(self->events, event);
}

static int runs_add(Runs *self, uint64_t parent, uint64_t block) {
    Blocks *run = &self->contents->run;
    int joins = run->count && run->items[run->count - 1] == parent && run->count < self->contents->max_run;
    if (!joins) {
        TRY(runs_flush(self));
        self->parent = parent;
    }
    TRY(blocks_reserve(run, 1));
    run->items[run->count++] = block;
    return 0;
}

static int set_closure(Tier *tier, uint32_t node, uint32_t closure) {
    uint32_t *state = column_make(&tier->states, node);
    NEED(state);
    *state = (*state & COUNT_MASK) | closure << COUNT_BITS;
    return 0;
}

static int hide(Tier *tier, uint32_t node) {
    uint32_t newest = tier->newest;
    TRY(links_make(&tier->hidden, node, newest, NO_LINK));
    TRY(set_closure(tier, node, HIDDEN));
    if (newest == NO_LINK) {
        tier->oldest = node;
    } else {
        links_find(&tier->hidden, newest)->behind = node;
    }
    tier->newest = node;
    tier->hidden_count++;
    return 0;
}

static int unhide(Tier *tier, uint32_t node, uint32_t closure) {
    const Link *link = links_find(&tier->hidden, node);
    if (tier->oldest == node) {
        tier->oldest = link->behind;
    }
    if (tier->newest == node) {
        tier->newest = link->before;
    }
    links_remove(&tier->hidden, node);
    tier->hidden_count--;
    return set_closure(tier, node, closure);
}

/* Forget the oldest hidden nodes beyond the bound. */
static int forget(const Contents *self, Tier *tier) {
    while (tier->hidden_count > self->max_hidden) {
        TRY(unhide(tier, tier->oldest, NOT_CLOSED));
        tier->held--;
        tier->forgotten++;
    }
    return 0;
}

typedef struct {
    uint64_t hash;
    uint32_t node;
} Child;

static int by_hash(const void *one, const void *two) {
    uint64_t a = ((const Child *)one)->hash, b = ((const Child *)two)->hash;
    return (a > b) - (a < b);
}

/* Put the nodes from `first` on in the order of their hashes; -1 with MemoryError set. */
static int sort_nodes(const Contents *self, U32s *nodes, Py_ssize_t first) {
    size_t count = (size_t)(nodes->count - first);
    if (count < 2) {
        return 0;
    }
    Child *children = PyMem_RawMalloc(count * sizeof *children);
    NEED_MEMORY(children);
    for (size_t at = 0; at < count; at++) {
        uint32_t node = nodes->items[first + (Py_ssize_t)at];
        children[at] = (Child){contents_hash(self, node), node};
    }
    qsort(children, count, sizeof *children, by_hash);
    for (size_t at = 0; at < count; at++) {
        nodes->items[first + (Py_ssize_t)at] = children[at].node;
    }
    PyMem_RawFree(children);
    return 0;
}

static int push(U32s *nodes, uint32_t node) {
    TRY(u32s_reserve(nodes, 1));
    nodes->items[nodes->count++] = node;
    return 0;
}

/* Push those children of a node that the tier's closure has, by rising hashes. */
static int push_children(Contents *self, const Tier *tier, uint32_t node) {
    Py_ssize_t first = self->stack.count;
    uint32_t child = keyed_at(&self->nodes, node)->two;
    while (child != NO_LINK) {
        TRY_IF(tier_closure(tier, child) != NOT_CLOSED, push(&self->stack, child));
        const Link *link = links_find(&self->siblings, child);
        child = link == NULL ? NO_LINK : link->behind;
    }
    return sort_nodes(self, &self->stack, first);
}

/* Find the descendants of a node in the tier's closure, parents first. */
static int find_descendants(Contents *self, const Tier *tier, uint32_t node) {
    self->stack.count = self->found.count = 0;
    int failed = push_children(self, tier, node) < 0;
    while (!failed && self->stack.count) {
        uint32_t child = self->stack.items[--self->stack.count];
        failed = push(&self->found, child) < 0 || push_children(self, tier, child) < 0;
    }
    return failed ? -1 : 0;
}

static int add_step(Runs *runs, uint32_t node) {
    const Contents *self = runs->contents;
    const KeyedRecord *record = keyed_at(&self->nodes, node);
    return runs_add(runs, contents_hash(self, record->one), record->key);
}

/* Announce what was hidden behind a node that is visible now. */
static int reveal(Runs *runs, Tier *tier, uint32_t node) {
    Contents *self = runs->contents;
    if (keyed_at(&self->nodes, node)->two == NO_LINK) {
        return 0;
    }
    TRY(find_descendants(self, tier, node));
    for (Py_ssize_t at = 0; at < self->found.count; at++) {
        uint32_t one = self->found.items[at];
        TRY(unhide(tier, one, VISIBLE));
        TRY(add_step(runs, one));
    }
    return 0;
}

/* A block that is its own parent, which only crafted tokens make, is never visible. */
static int hold(Runs *runs, Tier *tier, uint32_t node) {
    uint32_t parent = keyed_at(&runs->contents->nodes, node)->one;
    tier->held++;
    if (parent != FIRST_BLOCKS && (parent == node || tier_closure(tier, parent) != VISIBLE)) {
        return hide(tier, node);
    }
    TRY(set_closure(tier, node, VISIBLE));
    TRY(add_step(runs, node));
    return reveal(runs, tier, node);
}

/* A run of changes, each the parent of the next, is taken at once; then the hidden are counted. */
static int hold_changed(Runs *runs, Tier *tier) {
    const Contents *self = runs->contents;
    const U32s *changed = &tier->changed;
    for (Py_ssize_t at = 0; at < changed->count; at++) {
        uint32_t node = changed->items[at];
        int joins = at > 0 && keyed_at(&self->nodes, node)->one == changed->items[at - 1];
        if (at > 0 && !joins && (forget(self, tier) < 0 || runs_flush(runs) < 0)) {
            return -1;
        }
        TRY(hold(runs, tier, node));
    }
    return forget(self, tier) < 0 || runs_flush(runs) < 0 ? -1 : 0;
}

int contents_held(Contents *self, const EventTypes *types, PyObject *events) {
    for (int at = 0; at < self->tier_count; at++) {
        Tier *tier = self->tiers + at;
        if (tier->changed.count == 0) {
            continue;
        }
        Runs runs = {self, types, events, tier->number, ROOT_HASH};
        tier->seen = 1;
        TRY(hold_changed(&runs, tier));
        tier->changed.count = 0;
    }
    return 0;
}

static int gone(Contents *self, uint32_t node) {
    TRY(blocks_reserve(&self->run, 1));
    self->run.items[self->run.count++] = contents_hash(self, node);
    return 0;
}

/* Hide what follows a visible node, the deepest first. */
static int hide_descendants(Contents *self, Tier *tier, uint32_t node) {
    if (keyed_at(&self->nodes, node)->two == NO_LINK) {
        return 0;
    }
    TRY(find_descendants(self, tier, node));
    for (Py_ssize_t at = self->found.count; at-- > 0;) {
        uint32_t one = self->found.items[at];
        TRY(hide(tier, one));
        TRY(gone(self, one));
    }
    return 0;
}

static int drop(Contents *self, Tier *tier, uint32_t node) {
    uint32_t closure = tier_closure(tier, node);
    if (closure == NOT_CLOSED) {
        return 0;
    }
    tier->held--;
    if (closure == HIDDEN) {
        return unhide(tier, node, NOT_CLOSED);
    }
    TRY(hide_descendants(self, tier, node));
    TRY(gone(self, node));
    return set_closure(tier, node, NOT_CLOSED);
}

static int push_removed(Contents *self, const EventTypes *types, int number, PyObject *events) {
    Blocks *run = &self->run;
    for (Py_ssize_t first = 0; first < run->count; first += self->max_run) {
        Py_ssize_t left = run->count - first;
        PyObject *hashes = packed(run->items + first, left < self->max_run ? left : self->max_run);
        PyObject *tier = hashes == NULL ? NULL : PyLong_FromLong(number);
        PyObject *parts[] = {hashes, tier};
        PyObject *event = tier == NULL ? NULL : PyObject_Vectorcall(types->removed, parts, 2, NULL);
        XDECREF_ALL(hashes, tier);
        TRY(list_add(events, event));
    }
    run->count = 0;
    return 0;
}

/* Free a node without children that no tier holds. */
static void free_node(Contents *self, uint32_t node) {
    column_set(&self->roots, node, 0);
    column_set(&self->high_roots, node, 0);
    keyed_leave(&self->nodes, node, NO_RECORD);
    keyed_drop(&self->nodes, node);
}

/* A node that nobody holds leaves its parent, and goes unless it has children. */
static void let_go(Contents *self, uint32_t node) {
    KeyedRecord *record = keyed_at(&self->nodes, node);
    uint32_t parent = record->one;
    record->one = LET_GO;
    if (parent != FIRST_BLOCKS) {
        KeyedRecord *above = keyed_at(&self->nodes, parent);
        siblings_remove(&self->siblings, &above->two, node);
        if (parent != node && above->two == NO_LINK && above->one == LET_GO) {
            free_node(self, parent);
        }
    }
    if (record->two == NO_LINK) {
        free_node(self, node);
    }
}

int contents_dropped(Contents *self, const EventTypes *types, PyObject *events) {
    for (int at = 0; at < self->tier_count; at++) {
        Tier *tier = self->tiers + at;
        if (tier->changed.count == 0) {
            continue;
        }
        tier->seen = 1;
        for (Py_ssize_t one = 0; one < tier->changed.count; one++) {
            TRY(drop(self, tier, tier->changed.items[one]));
        }
        TRY(forget(self, tier));
        TRY(push_removed(self, types, tier->number, events));
    }
    U32s *last = &self->tiers[self->tier_count - 1].changed;
    for (Py_ssize_t one = 0; one < last->count; one++) {
        let_go(self, last->items[one]);
    }
    for (int at = 0; at < self->tier_count; at++) {
        self->tiers[at].changed.count = 0;
    }
    return 0;
}

int contents_dump(Contents *self, const Tier *tier, const EventTypes *types, PyObject *events) {
    Runs runs = {self, types, events, tier->number, ROOT_HASH};
    U32s roots = {0};
    int failed = 0;
    for (uint32_t node = 0; !failed && node < self->nodes.next; node++) {
        if (tier_closure(tier, node) != NOT_CLOSED && keyed_at(&self->nodes, node)->one == FIRST_BLOCKS) {
            failed = push(&roots, node) < 0;
        }
    }
    failed = failed || sort_nodes(self, &roots, 0) < 0;
    for (Py_ssize_t at = 0; !failed && at < roots.count; at++) {
        failed = add_step(&runs, roots.items[at]) < 0 || find_descendants(self, tier, roots.items[at]) < 0;
        for (Py_ssize_t one = 0; !failed && one < self->found.count; one++) {
            failed = add_step(&runs, self->found.items[one]) < 0;
        }
    }
    PyMem_RawFree(roots.items);
    return failed || runs_flush(&runs) < 0 ? -1 : 0;
}
