/* Where a hit may end, by all groups together: core.engines.kv_events.group_hits, see group_table.h. */
#include "groups/group_table.h"

#include <stdlib.h>

static int group_below(GroupTable *self, uint32_t node, uint32_t units, U32s *found) {
    found->count = 0;
    TRY(push_u32(found, node));
    while (units-- && found->count) {
        U32s *next = &self->next;
        next->count = 0;
        for (Py_ssize_t at = 0; at < found->count; at++) {
            uint32_t child = keyed_at(&self->nodes, found->items[at])->two;
            while (child != NO_LINK) {
                TRY(push_u32(next, child));
                const Link *link = links_find(&self->siblings, child);
                child = link == NULL ? NO_LINK : link->behind;
            }
        }
        U32s old = *found;
        *found = *next;
        *next = old;
    }
    return 0;
}

static int suspect_one(TierEnds *tier, uint32_t node) {
    if (column_get(&tier->marks, node)) {
        return 0;
    }
    return column_set(&tier->marks, node, 1) < 0 ? -1 : push_u32(&tier->suspect, node);
}

/* Doubt the nodes so many units behind one. */
static int distrust(GroupTable *self, int tier, uint32_t node, uint32_t units) {
    if (units == 0) {
        return suspect_one(self->tiers + tier, node);
    }
    TRY(group_below(self, node, units, &self->frontier));
    for (Py_ssize_t at = 0; at < self->frontier.count; at++) {
        TRY(suspect_one(self->tiers + tier, self->frontier.items[at]));
    }
    return 0;
}

/* Return how many blocks of a window group in a row end at a node, as many as are needed at most. */
static uint32_t run_of(const GroupTable *self, int tier, const CacheGroup *group, uint32_t node) {
    EXPECT(group_holds(group, tier, node));
    uint32_t above = group_above(self, node, group->step);
    if (above == NO_RECORD) {
        return group->need;
    }
    uint32_t run = column_get(group->runs + tier, above) + 1;
    return run < group->need ? run : group->need;
}

static uint32_t behind_of(const GroupTable *self, const CacheGroup *group) {
    return self->drop > group->step ? self->drop - group->step : 0;
}

static int follow_window(GroupTable *self, int tier, CacheGroup *group, uint32_t node) {
    self->changed.count = 0;
    TRY(push_u32(&self->changed, node));
    while (self->changed.count) {
        uint32_t one = self->changed.items[--self->changed.count];
        uint32_t run = run_of(self, tier, group, one);
        if (run == column_get(group->runs + tier, one)) {
            continue;
        }
        TRY(column_set(group->runs + tier, one, run));
        TRY(distrust(self, tier, one, behind_of(self, group)));
        TRY(group_below(self, one, group->step, &self->frontier));
        for (Py_ssize_t at = 0; at < self->frontier.count; at++) {
            TRY(push_u32(&self->changed, self->frontier.items[at]));
        }
    }
    return 0;
}

static int follow_other(GroupTable *self, int tier, const CacheGroup *group, uint32_t node) {
    return group->role == ROLE_STATE ? distrust(self, tier, node, self->drop)
                                     : follow_window(self, tier, (CacheGroup *)group, node);
}

/* Tell whether all full groups, leaving one out, hold a node. */
static int is_complete(const GroupTable *self, int tier, uint32_t node, const CacheGroup *but) {
    for (int number = 0; number < self->group_count; number++) {
        const CacheGroup *group = self->groups[number];
        if (group->role == ROLE_FULL && group != but && !group_holds(group, tier, node)) {
            return 0;
        }
    }
    return 1;
}

int group_chain(GroupTable *self, int tier, uint32_t node, int more) {
    Contents *contents = &self->contents;
    const KeyedRecord *record = keyed_at(&self->nodes, node);
    if (!more) {
        uint32_t known = keyed_find(&contents->nodes, record->key);
        return known == NO_NODE ? 0 : contents_remove(contents, contents->tiers + tier, known);
    }
    uint32_t known = contents_parent(contents, record->key);
    if (known == NO_NODE) {
        return -1;
    }
    if (keyed_at(&contents->nodes, known)->one == LET_GO) {
        uint32_t above = FIRST_BLOCKS;
        if (record->one != NO_RECORD) {
            above = contents_parent(contents, group_key(self, record->one));
            if (above == NO_NODE) {
                return -1;
            }
        }
        if (contents_node(contents, record->key, above, 0) == NO_NODE) {
            return -1;
        }
    }
    return contents_add(contents, contents->tiers + tier, known);
}

int group_gained(GroupTable *self, int tier, const CacheGroup *group, uint32_t node) {
    if (group->role != ROLE_FULL) {
        return follow_other(self, tier, group, node);
    }
    return is_complete(self, tier, node, NULL) ? group_chain(self, tier, node, 1) : 0;
}

int group_lost(GroupTable *self, int tier, const CacheGroup *group, uint32_t node) {
    if (group->role != ROLE_FULL) {
        return follow_other(self, tier, group, node);
    }
    return is_complete(self, tier, node, group) ? group_chain(self, tier, node, 0) : 0;
}

int group_lose_ends(GroupTable *self, uint32_t node) {
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        TierEnds *ends = self->tiers + tier;
        if (!column_get(&ends->ends, node)) {
            continue;
        }
        TRY(blocks_reserve(&ends->lost, 1));
        ends->lost.items[ends->lost.count++] = group_key(self, node);
        column_set(&ends->ends, node, 0);
    }
    return 0;
}

static int is_end(const GroupTable *self, int tier, uint32_t node) {
    uint32_t depth = column_get(&self->depths, node), drop = self->drop;
    uint32_t known = keyed_find(&self->contents.nodes, group_key(self, node));
    if (known == NO_NODE || tier_closure(self->contents.tiers + tier, known) != VISIBLE || depth <= drop ||
        (depth - drop) % self->align) {
        return 0;
    }
    for (int number = 0; number < self->group_count; number++) {
        const CacheGroup *group = self->groups[number];
        uint32_t back = group->role == ROLE_STATE ? drop : behind_of(self, group);
        uint32_t at = group->role == ROLE_FULL ? node : group_above(self, node, back);
        if (at == NO_RECORD ||
            (group->role == ROLE_WINDOW && column_get(group->runs + tier, at) < group->need) ||
            (group->role == ROLE_STATE && !group_holds(group, tier, at))) {
            return 0;
        }
    }
    return 1;
}

/* Doubt all that events from `first` on tell of. */
static int suspect_stored(GroupTable *self, PyObject *events, Py_ssize_t first) {
    for (; first < PyList_GET_SIZE(events); first++) {
        PyObject *event = Py_NewRef(PyList_GET_ITEM(events, first));
        PyObject *hashes = PyObject_GetAttrString(event, "hashes");
        PyObject *number = PyObject_GetAttrString(event, "tier");
        int tier = number == NULL ? -1 : group_tier(self, (int)PyLong_AsLong(number));
        int failed = hashes == NULL || !PyBytes_Check(hashes) || tier < 0;
        for (Py_ssize_t at = 0; !failed && at + 8 <= PyBytes_GET_SIZE(hashes); at += 8) {
            uint64_t key;
            memcpy(&key, PyBytes_AS_STRING(hashes) + at, sizeof key);
            uint32_t node = keyed_find(&self->nodes, key);
            failed = node != NO_RECORD && suspect_one(self->tiers + tier, node) < 0;
        }
        XDECREF_ALL(hashes, number);
        Py_DECREF(event);
        if (failed) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "an event has hashes, bytes, and the number of a tier");
            }
            return -1;
        }
    }
    return 0;
}

int group_settle(GroupTable *self, const EventTypes *types, PyObject *events) {
    Py_ssize_t first = PyList_GET_SIZE(events);
    int failed = self->removes ? contents_dropped(&self->contents, types, events)
                               : contents_held(&self->contents, types, events);
    return failed < 0 ? -1 : suspect_stored(self, events, first);
}

/* Make room for a tier's columns at a place; they are empty. */
static void shift_tiers(GroupTable *self, int at, int after) {
    memmove(self->tiers + at + 1, self->tiers + at, (size_t)after * sizeof *self->tiers);
    memset(self->tiers + at, 0, sizeof *self->tiers);
    for (int number = 0; number < self->group_count; number++) {
        CacheGroup *group = self->groups[number];
        Column *const columns[] = {group->references, group->covers, group->runs};
        for (int one = 0; one < 3; one++) {
            memmove(columns[one] + at + 1, columns[one] + at, (size_t)after * sizeof *columns[one]);
            memset(columns[one] + at, 0, sizeof *columns[one]);
        }
    }
}

int group_open(GroupTable *self, int number, const EventTypes *types, PyObject *events) {
    if (group_tier(self, number) >= 0) {
        return 0;
    }
    int before = self->contents.tier_count;
    NEED(contents_tier(&self->contents, number, types, events));
    int at = group_tier(self, number);
    shift_tiers(self, at, before - at);
    for (int one = 0; one < self->group_count; one++) {
        TRY(column_copy(self->groups[one]->runs + at, self->groups[one]->runs + at - 1));
    }
    const TierEnds *nearer = self->tiers + at - 1;
    for (uint32_t node = 0; node < self->nodes.next; node++) {
        int open = column_get(&nearer->ends, node) || column_get(&nearer->marks, node);
        TRY_IF(open, suspect_one(self->tiers + at, node));
    }
    return 0;
}

static int by_key(const void *one, const void *two) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)two;
    return (a > b) - (a < b);
}

static int push_key(Blocks *to, uint64_t key) {
    TRY(blocks_reserve(to, 1));
    to->items[to->count++] = key;
    return 0;
}

/* Append keys in rising order as events of ends, `Stored` or `Removed`. */
static int push_ends(const GroupTable *self, Blocks *keys, int number, const EventTypes *types, int stored,
                     PyObject *events) {
    enum { ENDS = 64 };
    if (keys->count) {
        qsort(keys->items, (size_t)keys->count, sizeof *keys->items, by_key);
    }
    Py_ssize_t most = self->contents.max_run;
    for (Py_ssize_t first = 0; first < keys->count; first += most) {
        Py_ssize_t left = keys->count - first, count = left < most ? left : most;
        PyObject *hashes = PyBytes_FromStringAndSize((const char *)(keys->items + first), count * 8);
        PyObject *tier = PyLong_FromLong(ENDS + number), *root = PyLong_FromLong(0);
        PyObject *parts[] = {root, hashes, tier};
        PyObject *event = NULL;
        if (hashes != NULL && tier != NULL && root != NULL) {
            event = stored ? PyObject_Vectorcall(types->stored, parts, 3, NULL)
                           : PyObject_Vectorcall(types->removed, parts + 1, 2, NULL);
        }
        int failed = event == NULL || PyList_Append(events, event) < 0;
        XDECREF_ALL(event, root, hashes, tier);
        if (failed) {
            return -1;
        }
    }
    keys->count = 0;
    return 0;
}

/* Find which nodes of a tier became ends, or ceased to be. */
static int judge(GroupTable *self, int tier) {
    TierEnds *ends = self->tiers + tier;
    self->gone.count = self->fresh.count = 0;
    for (Py_ssize_t at = 0; at < ends->lost.count; at++) {
        uint64_t key = ends->lost.items[at];
        uint32_t node = keyed_find(&self->nodes, key);
        int stays = node != NO_RECORD && is_end(self, tier, node);
        if (stays ? column_set(&ends->ends, node, 1) < 0 : push_key(&self->gone, key) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t at = 0; at < ends->suspect.count; at++) {
        uint32_t node = ends->suspect.items[at];
        column_set(&ends->marks, node, 0);
        if (!column_get(&self->depths, node)) {
            continue;
        }
        int was = column_get(&ends->ends, node) != 0, is = is_end(self, tier, node);
        if (was != is && (column_set(&ends->ends, node, (uint32_t)is) < 0 ||
                          push_key(is ? &self->fresh : &self->gone, group_key(self, node)) < 0)) {
            return -1;
        }
    }
    ends->lost.count = ends->suspect.count = 0;
    return 0;
}

int group_take_ends(GroupTable *self, const EventTypes *types, PyObject *gone, PyObject *fresh) {
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        int number = self->contents.tiers[tier].number;
        TRY(judge(self, tier));
        TRY(push_ends(self, &self->gone, number, types, 0, gone));
        TRY(push_ends(self, &self->fresh, number, types, 1, fresh));
    }
    return 0;
}

int group_dump(GroupTable *self, const EventTypes *types, PyObject *events) {
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        const Tier *chain = self->contents.tiers + tier;
        TRY(contents_dump(&self->contents, chain, types, events));
        self->fresh.count = 0;
        for (uint32_t node = 0; node < self->nodes.next; node++) {
            int end = column_get(&self->depths, node) && column_get(&self->tiers[tier].ends, node);
            TRY_IF(end, push_key(&self->fresh, group_key(self, node)));
        }
        TRY(push_ends(self, &self->fresh, chain->number, types, 1, events));
    }
    return 0;
}
