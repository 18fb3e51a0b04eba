/* A rule that changed, worked out over all that is held: see group_table.h. */
#include "groups/group_table.h"

#include <stdlib.h>

typedef struct {
    uint64_t key;
    uint32_t depth, node;
} Placed;

static int by_depth(const void *one, const void *two) {
    const Placed *a = one, *b = two;
    if (a->depth != b->depth) {
        return a->depth < b->depth ? -1 : 1;
    }
    return (a->key > b->key) - (a->key < b->key);
}

/* Count what a block covers in each tier that stored it. */
static int count_block(GroupTable *self, CacheGroup *group, uint32_t block) {
    TRY(group_collect(self, group, block));
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        if (!column_get(group->references + tier, block)) {
            continue;
        }
        for (Py_ssize_t at = 0; at < self->covered.count; at++) {
            uint32_t *count = column_make(group->covers + tier, self->covered.items[at]);
            NEED(count);
            (*count)++;
        }
    }
    return 0;
}

static int count_group(GroupTable *self, CacheGroup *group) {
    for (int tier = 0; tier < MOST_TIERS; tier++) {
        column_free(group->covers + tier);
        column_free(group->runs + tier);
    }
    for (int number = 0; number < KEYED_PARTS; number++) {
        const KeyedPart *part = group->held.parts + number;
        for (uint32_t at = 0; at < part->room; at++) {
            int used = part->places[at] != UINT32_MAX;
            TRY_IF(used, count_block(self, group, part->places[at] & NO_RECORD));
        }
    }
    return 0;
}

/* Take a node with all that is held of it. */
static int enter(GroupTable *self, uint32_t node) {
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        int whole = 1;
        for (int number = 0; number < self->group_count; number++) {
            const CacheGroup *group = self->groups[number];
            whole &= group->role != ROLE_FULL || group_holds(group, tier, node);
            TRY_IF(group->role != ROLE_FULL, group_gained(self, tier, group, node));
        }
        TRY_IF(whole, group_chain(self, tier, node, 1));
    }
    return 0;
}

static int enter_all(GroupTable *self) {
    size_t count = 0;
    Placed *placed = PyMem_RawMalloc(((size_t)self->boundaries + 1) * sizeof *placed);
    NEED_MEMORY(placed);
    for (uint32_t node = 0; node < self->nodes.next; node++) {
        uint32_t depth = column_get(&self->depths, node);
        if (depth) {
            placed[count++] = (Placed){group_key(self, node), depth, node};
        }
    }
    qsort(placed, count, sizeof *placed, by_depth);
    int failed = 0;
    for (size_t at = 0; !failed && at < count; at++) {
        failed = enter(self, placed[at].node) < 0;
    }
    PyMem_RawFree(placed);
    return failed ? -1 : 0;
}

/* Begin the chains anew, with the tiers that there are. */
static int reset_tiers(GroupTable *self, const EventTypes *types, PyObject *events) {
    int numbers[MOST_TIERS], count = self->contents.tier_count;
    for (int tier = 0; tier < count; tier++) {
        numbers[tier] = self->contents.tiers[tier].number;
        TierEnds *ends = self->tiers + tier;
        column_free(&ends->ends);
        column_free(&ends->marks);
        ends->suspect.count = ends->lost.count = 0;
    }
    contents_clear(&self->contents);
    for (int tier = 1; tier < count; tier++) {
        NEED(contents_tier(&self->contents, numbers[tier], types, events));
    }
    return 0;
}

int group_settle_rule(GroupTable *self, const EventTypes *types) {
    PyObject *events = PyList_New(0);
    self->removes = 0;
    int failed = events == NULL || reset_tiers(self, types, events) < 0;
    for (int number = 0; !failed && number < self->group_count; number++) {
        failed = count_group(self, self->groups[number]) < 0;
    }
    failed = failed || enter_all(self) < 0 || group_settle(self, types, events) < 0 ||
             group_take_ends(self, types, events, events) < 0;
    Py_XDECREF(events);
    return failed ? -1 : 0;
}
