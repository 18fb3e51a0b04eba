/* Nodes of contents, counted by tier: see contents.h. What follows from them is in closing.c. */
#include "engines/contents.h"

static void tier_init(Tier *tier, int number) {
    *tier = (Tier){.number = number, .oldest = NO_LINK, .newest = NO_LINK};
}

static void tier_free(Tier *tier) {
    column_free(&tier->states);
    column_free(&tier->references);
    links_free(&tier->hidden);
    PyMem_RawFree(tier->changed.items);
}

void contents_init(Contents *self) {
    memset(self, 0, sizeof *self);
    keyed_init(&self->nodes);
    tier_init(self->tiers, 0);
    self->tier_count = 1;
}

void contents_clear(Contents *self) {
    keyed_free(&self->nodes);
    column_free(&self->roots);
    column_free(&self->high_roots);
    links_free(&self->siblings);
    for (int at = 0; at < self->tier_count; at++) {
        tier_free(self->tiers + at);
    }
    tier_init(self->tiers, 0);
    self->tier_count = 1;
    RAW_FREE_ALL(self->stack.items, self->found.items, self->run.items);
    self->stack = self->found = (U32s){0};
    self->run = (Blocks){0};
}

static uint32_t count_in(const Tier *tier, uint32_t node) {
    return column_get(&tier->states, node) & COUNT_MASK;
}

/* Tell whether any tier holds a node: what a nearer one does the farthest does, too. */
static int is_held(const Contents *self, uint32_t node) {
    return count_in(self->tiers + self->tier_count - 1, node) > 0;
}

static int put_under(Contents *self, uint32_t node, uint32_t parent, uint64_t root) {
    TRY(column_set(&self->roots, node, (uint32_t)root));
    TRY(column_set(&self->high_roots, node, (uint32_t)(root >> 32)));
    keyed_at(&self->nodes, node)->one = parent;
    return parent == FIRST_BLOCKS
               ? 0
               : siblings_add(&self->siblings, &keyed_at(&self->nodes, parent)->two, node);
}

uint32_t contents_parent(Contents *self, uint64_t hash) {
    uint32_t node = keyed_find(&self->nodes, hash);
    if (node != NO_NODE) {
        return node;
    }
    node = keyed_make(&self->nodes, hash);
    if (node == NO_NODE) {
        return NO_NODE;
    }
    keyed_at(&self->nodes, node)->one = LET_GO;
    keyed_at(&self->nodes, node)->two = NO_LINK;
    return keyed_enter(&self->nodes, node) < 0 ? NO_NODE : node;
}

uint32_t contents_node(Contents *self, uint64_t hash, uint32_t parent, uint64_t root) {
    uint32_t node = contents_parent(self, hash);
    if (node == NO_NODE || is_held(self, node)) {
        return node;
    }
    return put_under(self, node, parent, root) < 0 ? NO_NODE : node;
}

static int note(Tier *tier, uint32_t node) {
    TRY(u32s_reserve(&tier->changed, 1));
    tier->changed.items[tier->changed.count++] = node;
    return 0;
}

int contents_add(Contents *Py_UNUSED(self), Tier *tier, uint32_t node) {
    uint32_t *state = column_make(&tier->states, node);
    if (state == NULL || ((*state & COUNT_MASK) == 0 && note(tier, node) < 0)) {
        return -1;
    }
    (*state)++;
    return 0;
}

/* Contents that are crafted to have one hash could lead here more often than blocks were counted. */
int contents_remove(Contents *Py_UNUSED(self), Tier *tier, uint32_t node) {
    if (count_in(tier, node) == 0) {
        return 0;
    }
    uint32_t *state = column_make(&tier->states, node);
    if (state == NULL || ((*state & COUNT_MASK) == 1 && note(tier, node) < 0)) {
        return -1;
    }
    (*state)--;
    return 0;
}

static int copy_hidden(Tier *to, const Tier *from) {
    for (uint32_t node = from->oldest; node != NO_LINK;) {
        const Link *link = links_find(&from->hidden, node);
        TRY(links_make(&to->hidden, node, link->before, link->behind));
        node = link->behind;
    }
    to->oldest = from->oldest;
    to->newest = from->newest;
    return 0;
}

/* Put an empty tier in its place, the one before which is nearer. */
static Tier *insert_tier(Contents *self, int at, int number) {
    memmove(self->tiers + at + 1, self->tiers + at, (size_t)(self->tier_count - at) * sizeof *self->tiers);
    self->tier_count++;
    tier_init(self->tiers + at, number);
    return self->tiers + at;
}

Tier *contents_tier(Contents *self, int number, const EventTypes *types, PyObject *events) {
    int at = 0;
    while (at < self->tier_count && self->tiers[at].number < number) {
        at++;
    }
    if (at < self->tier_count && self->tiers[at].number == number) {
        return self->tiers + at;
    }
    REFUSE_OR_NULL(self->tier_count == MOST_TIERS, PyExc_ValueError,
                   "an engine has at most %d tiers", MOST_TIERS);
    Tier *tier = insert_tier(self, at, number);
    const Tier *nearer = tier - 1;
    TRY_OR_NULL(column_copy(&tier->states, &nearer->states));
    TRY_OR_NULL(copy_hidden(tier, nearer));
    tier->seen = nearer->seen;
    tier->held = nearer->held;
    tier->hidden_count = nearer->hidden_count;
    return contents_dump(self, tier, types, events) < 0 ? NULL : tier;
}
