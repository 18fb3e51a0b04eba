/* Blocks counted by group, tier and engine hash: see group_table.h. What that means is in group_ends.c. */
#include "groups/group_table.h"

void group_table_init(GroupTable *self) {
    keyed_init(&self->nodes);
    contents_init(&self->contents);
}

static void free_columns(CacheGroup *group) {
    for (int tier = 0; tier < MOST_TIERS; tier++) {
        column_free(group->references + tier);
        column_free(group->covers + tier);
        column_free(group->runs + tier);
    }
}

static void free_tier(TierEnds *tier) {
    column_free(&tier->ends);
    column_free(&tier->marks);
    RAW_FREE_ALL(tier->suspect.items, tier->lost.items);
    *tier = (TierEnds){.suspect = {0}};
}

void group_table_clear(GroupTable *self) {
    keyed_free(&self->nodes);
    links_free(&self->siblings);
    column_free(&self->depths);
    column_free(&self->uses);
    column_free(&self->roots);
    column_free(&self->high_roots);
    contents_clear(&self->contents);
    for (int tier = 0; tier < MOST_TIERS; tier++) {
        free_tier(self->tiers + tier);
    }
    for (int number = 0; number < self->group_count; number++) {
        keyed_free(&self->groups[number]->held);
        self->groups[number]->count = 0;
        free_columns(self->groups[number]);
    }
    U32s *const scratch[] = {&self->covered, &self->frontier, &self->next, &self->changed, &self->made};
    for (size_t at = 0; at < sizeof scratch / sizeof *scratch; at++) {
        PyMem_RawFree(scratch[at]->items);
        *scratch[at] = (U32s){0};
    }
    RAW_FREE_ALL(self->gone.items, self->fresh.items);
    self->gone = self->fresh = (Blocks){0};
    self->blocks = self->boundaries = 0;
}

void group_table_free(GroupTable *self) {
    group_table_clear(self);
    for (int number = 0; number < self->group_count; number++) {
        PyMem_RawFree(self->groups[number]);
    }
    self->group_count = 0;
}

uint32_t group_find(const GroupTable *self, uint64_t hash) {
    for (int number = 0; number < self->group_count; number++) {
        const Keyed *held = &self->groups[number]->held;
        uint32_t block = keyed_find(held, hash);
        if (block != NO_RECORD) {
            return keyed_at(held, block)->one;
        }
    }
    return NO_RECORD;
}

/* Collect the nodes at which a block is held, the first one first: it may be several blocks in one, or end
 * inside one of its group. */
int group_collect(GroupTable *self, const CacheGroup *group, uint32_t block) {
    const KeyedRecord *record = keyed_at(&group->held, block);
    uint32_t node = record->one, span = record->two, every = 1;
    U32s *covered = &self->covered;
    covered->count = 0;
    if (group->role == ROLE_STATE || (!span && (group->step == 1 || group->role != ROLE_FULL))) {
        return push_u32(covered, node);
    }
    if (group->role == ROLE_FULL) {
        uint32_t inside = column_get(&self->depths, node) % group->step;
        span = span ? span : inside ? inside : group->step;
    } else {
        every = group->step;
    }
    for (uint32_t unit = 0; unit < span && node != NO_RECORD; unit++) {
        TRY_IF(unit % every == 0, push_u32(covered, node));
        node = keyed_at(&self->nodes, node)->one;
    }
    for (Py_ssize_t at = 0; at < covered->count / 2; at++) {
        uint32_t one = covered->items[at];
        covered->items[at] = covered->items[covered->count - 1 - at];
        covered->items[covered->count - 1 - at] = one;
    }
    return 0;
}

static int add_cover(GroupTable *self, CacheGroup *group, int tier, uint32_t node) {
    unsigned before = 0;
    for (int upto = tier; upto < self->contents.tier_count; upto++) {
        before |= (unsigned)group_holds(group, upto, node) << upto;
    }
    uint32_t count = column_get(group->covers + tier, node);
    TRY(column_set(group->covers + tier, node, count + 1));
    for (int upto = tier; upto < self->contents.tier_count; upto++) {
        TRY_IF(!(before >> upto & 1), group_gained(self, upto, group, node));
    }
    return 0;
}

static int remove_cover(GroupTable *self, CacheGroup *group, int tier, uint32_t node) {
    uint32_t count = column_get(group->covers + tier, node);
    TRY(column_set(group->covers + tier, node, count - 1));
    for (int upto = tier; upto < self->contents.tier_count; upto++) {
        TRY_IF(!group_holds(group, upto, node), group_lost(self, upto, group, node));
    }
    return 0;
}

/* Return a new node one unit behind another; NO_RECORD with MemoryError set. */
static uint32_t make_node(GroupTable *self, uint64_t key, uint32_t above, uint64_t root) {
    uint32_t node = keyed_make(&self->nodes, key);
    if (node == NO_RECORD) {
        return NO_RECORD;
    }
    *keyed_at(&self->nodes, node) = (KeyedRecord){key, above, NO_LINK};
    uint32_t depth = above == NO_RECORD ? 1 : column_get(&self->depths, above) + 1;
    if (column_set(&self->depths, node, depth) < 0 || column_set(&self->uses, node, 0) < 0 ||
        column_set(&self->roots, node, (uint32_t)root) < 0 ||
        column_set(&self->high_roots, node, (uint32_t)(root >> 32)) < 0 ||
        (above != NO_RECORD &&
         siblings_add(&self->siblings, &keyed_at(&self->nodes, above)->two, node) < 0) ||
        keyed_enter(&self->nodes, node) < 0) {
        return NO_RECORD;
    }
    self->boundaries++;
    return node;
}

static int grow(GroupTable *self, const GroupStore *store) {
    uint32_t above = store->has_before ? keyed_find(&self->nodes, store->before) : NO_RECORD;
    self->made.count = 0;
    for (Py_ssize_t at = 0; at < store->path_count; at++) {
        uint32_t node = keyed_find(&self->nodes, store->path[at]);
        if (node == NO_RECORD) {
            node = make_node(self, store->path[at], above, store->root);
            if (node == NO_RECORD || push_u32(&self->made, node) < 0) {
                return -1;
            }
        }
        above = node;
    }
    return 0;
}

/* Drop what no block ends behind and nothing follows, from a node up. `chained`: it may be in chains. */
static int prune(GroupTable *self, uint32_t node, int chained) {
    while (node != NO_RECORD && column_get(&self->uses, node) == 0 &&
           keyed_at(&self->nodes, node)->two == NO_LINK) {
        uint32_t above = keyed_at(&self->nodes, node)->one;
        for (int tier = 0; chained && !self->full_count && tier < self->contents.tier_count; tier++) {
            TRY(group_chain(self, tier, node, 0));
        }
        TRY(group_lose_ends(self, node));
        if (above != NO_RECORD) {
            siblings_remove(&self->siblings, &keyed_at(&self->nodes, above)->two, node);
        }
        column_set(&self->depths, node, 0);
        keyed_leave(&self->nodes, node, NO_RECORD);
        keyed_drop(&self->nodes, node);
        self->boundaries--;
        node = above;
    }
    return 0;
}

/* Count a block: 1, 0 if there is no room for it, -1 with MemoryError set. */
static int hold(GroupTable *self, const GroupStore *store, int tier, uint64_t hash, uint64_t key) {
    CacheGroup *group = store->group;
    uint32_t block = keyed_find(&group->held, hash);
    if (block == NO_RECORD) {
        if (self->blocks >= self->most_blocks - 1) {
            return 0;
        }
        uint32_t node = group_find(self, hash);
        node = node == NO_RECORD ? keyed_find(&self->nodes, key) : node;
        REFUSE(node == NO_RECORD, PyExc_ValueError, "no prefix has the key %llu",
               (unsigned long long)key);
        block = keyed_make(&group->held, hash);
        if (block == NO_RECORD) {
            return -1;
        }
        *keyed_at(&group->held, block) =
            (KeyedRecord){hash, node, store->span > group->step ? store->span : 0};
        TRY(keyed_enter(&group->held, block));
        TRY(column_set(&self->uses, node, column_get(&self->uses, node) + 1));
        self->blocks++;
        group->count++;
    }
    uint32_t count = column_get(group->references + tier, block), room = self->most_references - count;
    uint32_t added = store->times < room ? store->times : room;
    TRY(column_set(group->references + tier, block, count + added));
    if (count || group_collect(self, group, block) < 0) {
        return count ? 1 : -1;
    }
    for (Py_ssize_t at = 0; at < self->covered.count; at++) {
        TRY(add_cover(self, group, tier, self->covered.items[at]));
    }
    return 1;
}

long long group_store(GroupTable *self, const GroupStore *store) {
    int tier = group_tier(self, store->tier);
    long long crowded = 0;
    self->removes = 0;
    if (tier < 0 || grow(self, store) < 0) {
        if (tier < 0) {
            PyErr_Format(PyExc_ValueError, "tier %d is not open", store->tier);
        }
        return -1;
    }
    for (Py_ssize_t at = 0; at < store->count; at++) {
        int held = store->left_out[at] ? 1 : hold(self, store, tier, store->hashes[at], store->ends[at]);
        TRY(held);
        crowded += !held;
    }
    for (Py_ssize_t at = self->made.count; at-- > 0;) {
        uint32_t node = self->made.items[at];
        TRY_IF(column_get(&self->depths, node), prune(self, node, 0));
    }
    for (Py_ssize_t at = 0; !self->full_count && at < self->made.count; at++) {
        uint32_t node = self->made.items[at];
        for (int one = 0; column_get(&self->depths, node) && one < self->contents.tier_count; one++) {
            TRY(group_chain(self, one, node, 1));
        }
    }
    return crowded;
}

/* Forget a block that no tier holds. */
static int release(GroupTable *self, CacheGroup *group, uint32_t block) {
    uint32_t node = keyed_at(&group->held, block)->one;
    keyed_leave(&group->held, block, NO_RECORD);
    keyed_drop(&group->held, block);
    self->blocks--;
    group->count--;
    TRY(column_set(&self->uses, node, column_get(&self->uses, node) - 1));
    return prune(self, node, 1);
}

static int is_stored(const GroupTable *self, const CacheGroup *group, uint32_t block) {
    for (int tier = 0; tier < self->contents.tier_count; tier++) {
        if (column_get(group->references + tier, block)) {
            return 1;
        }
    }
    return 0;
}

long long group_remove(GroupTable *self, CacheGroup *group, int number, const uint64_t *hashes,
                       Py_ssize_t count) {
    int tier = group_tier(self, number);
    long long unknown = 0;
    self->removes = 1;
    for (Py_ssize_t at = 0; at < count; at++) {
        uint32_t block = keyed_find(&group->held, hashes[at]);
        uint32_t times = block == NO_RECORD || tier < 0 ? 0 : column_get(group->references + tier, block);
        if (!times) {
            unknown++;
            continue;
        }
        TRY(column_set(group->references + tier, block, times - 1));
        if (times > 1) {
            continue;
        }
        TRY(group_collect(self, group, block));
        for (Py_ssize_t one = self->covered.count; one-- > 0;) {
            TRY(remove_cover(self, group, tier, self->covered.items[one]));
        }
        TRY_IF(!is_stored(self, group, block), release(self, group, block));
    }
    return unknown;
}
