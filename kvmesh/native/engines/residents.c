/* What one engine holds: see residents.h. */
#include "base/arrays.h"
#include "base/xxh3.h"
#include "engines/residents.h"

#define TOKEN_BYTES 4
#define AHEAD 8

void residents_init(Residents *self) {
    memset(self, 0, sizeof *self);
    keyed_init(&self->blocks);
    column_init(&self->twins, NO_RECORD);
    contents_init(&self->contents);
}

void residents_clear(Residents *self) {
    keyed_free(&self->blocks);
    column_free(&self->twins);
    column_free(&self->spans);
    for (uint32_t span = 0; span < self->span_count; span++) {
        PyMem_RawFree(self->span_items[span].items);
    }
    RAW_FREE_ALL(self->span_items, self->free_spans.items, self->hashes.items);
    self->span_items = NULL;
    self->span_count = self->span_room = 0;
    self->free_spans = (U32s){0};
    self->hashes = (Blocks){0};
    self->count = 0;
    contents_clear(&self->contents);
}

int residents_cleared(const EventTypes *types, PyObject *events) {
    int failed = list_add(events, PyObject_CallNoArgs(types->cleared)) < 0;
    return failed ? -1 : 0;
}

/* Return a block's nodes, first one first. */
static const uint32_t *nodes_of(const Residents *self, uint32_t block, Py_ssize_t *count) {
    uint32_t span = column_get(&self->spans, block);
    if (span) {
        *count = self->span_items[span - 1].count;
        return self->span_items[span - 1].items;
    }
    *count = 1;
    return &keyed_at(&self->blocks, block)->one;
}

static uint32_t last_node(const Residents *self, uint32_t block) {
    Py_ssize_t count;
    const uint32_t *nodes = nodes_of(self, block, &count);
    return nodes[count - 1];
}

static uint32_t references(const Residents *self, int tier, uint32_t block) {
    return tier == 0 ? keyed_at(&self->blocks, block)->two
                     : column_get(&self->contents.tiers[tier].references, block);
}

static int set_references(Residents *self, int tier, uint32_t block, uint32_t count) {
    if (tier == 0) {
        keyed_at(&self->blocks, block)->two = count;
        return 0;
    }
    return column_set(&self->contents.tiers[tier].references, block, count);
}

/* Tell whether a tier or a nearer one stored a block, leaving one tier out. */
static int stored_upto(const Residents *self, int upto, uint32_t block, int but) {
    for (int tier = 0; tier <= upto; tier++) {
        if (tier != but && references(self, tier, block)) {
            return 1;
        }
    }
    return 0;
}

/* Count a block in, or out of, those tiers in which it is the first, or last, reference. */
static int count_block(Residents *self, uint32_t block, int tier, int more) {
    Py_ssize_t count;
    const uint32_t *nodes = nodes_of(self, block, &count);
    for (int upto = tier; upto < self->contents.tier_count; upto++) {
        if (stored_upto(self, upto, block, tier)) {
            break;
        }
        Tier *table = self->contents.tiers + upto;
        for (Py_ssize_t at = 0; at < count; at++) {
            int failed = more ? contents_add(&self->contents, table, nodes[at])
                              : contents_remove(&self->contents, table, nodes[count - 1 - at]);
            TRY(failed);
        }
    }
    return 0;
}

static int refer(Residents *self, uint32_t block, int tier) {
    uint32_t count = references(self, tier, block);
    if (count >= self->most_references) {
        return 0;
    }
    TRY(set_references(self, tier, block, count + 1));
    return count ? 0 : count_block(self, block, tier, 1);
}

static int release(Residents *self, uint32_t block, int tier) {
    uint32_t count = references(self, tier, block);
    TRY(set_references(self, tier, block, count - 1));
    return count > 1 ? 0 : count_block(self, block, tier, 0);
}

static uint32_t take_span(Residents *self) {
    if (self->free_spans.count) {
        return self->free_spans.items[--self->free_spans.count];
    }
    if (RAW_GROW(self->span_items, self->span_count, self->span_room, 16) < 0) {
        return NO_RECORD;
    }
    self->span_items[self->span_count] = (U32s){0};
    return self->span_count++;
}

/* What a run of blocks is stored behind. */
typedef struct {
    uint64_t parent;
    uint32_t node; /* the parent's, NO_NODE for none or unknown */
    uint64_t root;
    int tier; /* its place among the tiers */
} Place;

static uint32_t parent_node(Residents *self, const Place *place) {
    if (place->parent == ROOT_HASH) {
        return FIRST_BLOCKS;
    }
    return place->node != NO_NODE ? place->node : contents_parent(&self->contents, place->parent);
}

/* Note a block's nodes, made where they belong, each counted at once in the tiers from `tier` on: the same
 * content twice in one block, which only crafted tokens make, is then one node. */
static int make_nodes(Residents *self, uint32_t block, const uint64_t *contents, Py_ssize_t step,
                      const Place *place) {
    U32s *span = NULL;
    uint32_t parent = parent_node(self, place);
    if (parent == NO_NODE && place->parent != ROOT_HASH) {
        return -1;
    }
    if (step > 1) {
        uint32_t number = take_span(self);
        if (number == NO_RECORD || column_set(&self->spans, block, number + 1) < 0) {
            return -1;
        }
        span = self->span_items + number;
        span->count = 0;
        TRY(u32s_reserve(span, step));
    }
    for (Py_ssize_t at = 0; at < step; at++) {
        uint32_t node = contents_node(&self->contents, contents[at], parent, place->root);
        if (node == NO_NODE) {
            return -1;
        }
        for (int upto = place->tier; upto < self->contents.tier_count; upto++) {
            TRY(contents_add(&self->contents, self->contents.tiers + upto, node));
        }
        if (span == NULL) {
            keyed_at(&self->blocks, block)->one = node;
        } else {
            span->items[span->count++] = node;
        }
        parent = contents[at] == ROOT_HASH ? FIRST_BLOCKS : node;
    }
    return 0;
}

static uint32_t make_block(Residents *self, uint64_t hash, const uint64_t *contents, Py_ssize_t step,
                           const Place *place) {
    uint32_t block = keyed_make(&self->blocks, hash);
    if (block == NO_RECORD || set_references(self, place->tier, block, 1) < 0 ||
        make_nodes(self, block, contents, step, place) < 0) {
        return NO_RECORD;
    }
    return block;
}

static int free_block(Residents *self, uint32_t block) {
    uint32_t span = column_get(&self->spans, block);
    if (span && (u32s_reserve(&self->free_spans, 1) < 0 || column_set(&self->spans, block, 0) < 0)) {
        return -1;
    }
    if (span) {
        self->free_spans.items[self->free_spans.count++] = span - 1;
    }
    for (int tier = 1; tier < self->contents.tier_count; tier++) {
        column_set(&self->contents.tiers[tier].references, block, 0);
    }
    column_set(&self->twins, block, NO_RECORD);
    keyed_drop(&self->blocks, block);
    return 0;
}

static int has_contents(const Residents *self, uint32_t block, const uint64_t *contents, Py_ssize_t step) {
    Py_ssize_t count;
    const uint32_t *nodes = nodes_of(self, block, &count);
    if (count != step) {
        return 0;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        if (contents_hash(&self->contents, nodes[at]) != contents[at]) {
            return 0;
        }
    }
    return 1;
}

/* Store a hash that is known again: its block of that content, a new twin if need be. */
static int hold_known(Residents *self, uint32_t known, const uint64_t *contents, Py_ssize_t step,
                      const Place *place) {
    uint32_t block = known, last = known;
    long long twins = 0;
    while (block != NO_RECORD && !has_contents(self, block, contents, step)) {
        last = block;
        block = column_get(&self->twins, block);
        twins++;
    }
    if (block != NO_RECORD) {
        return refer(self, block, place->tier);
    }
    if (twins - 1 >= self->most_twins) {
        self->counts.crowded++;
        return refer(self, known, place->tier);
    }
    uint64_t hash = keyed_at(&self->blocks, known)->key;
    block = make_block(self, hash, contents, step, place);
    return block == NO_RECORD ? -1 : column_set(&self->twins, last, block);
}

int residents_hold(Residents *self, uint64_t hash, const Kept *kept) {
    uint32_t next = keyed_find(&self->blocks, hash), last = NO_RECORD;
    long long known = 0;
    Place place = {kept->parent, NO_NODE, kept->root, 0};
    for (; next != NO_RECORD; next = column_get(&self->twins, next)) {
        last = next;
        known++;
    }
    if (known ? known > self->most_twins : self->count >= self->most_blocks) {
        return 0;
    }
    while (!kept->counts[place.tier]) {
        place.tier++;
    }
    uint32_t block = make_block(self, hash, kept->contents, kept->step, &place);
    if (block == NO_RECORD) {
        return -1;
    }
    for (int tier = place.tier; tier < self->contents.tier_count; tier++) {
        TRY(set_references(self, tier, block, kept->counts[tier]));
    }
    if (last != NO_RECORD) {
        return column_set(&self->twins, last, block) < 0 ? -1 : 1;
    }
    self->count++;
    return keyed_enter(&self->blocks, block) < 0 ? -1 : 1;
}

/* Return the block with a hash, of several the one in the same namespace. */
static uint32_t find_block(const Residents *self, uint64_t hash, uint64_t root) {
    uint32_t known = keyed_find(&self->blocks, hash);
    uint32_t twin = known == NO_RECORD ? NO_RECORD : column_get(&self->twins, known);
    while (twin != NO_RECORD && contents_root(&self->contents, last_node(self, twin)) != root) {
        twin = column_get(&self->twins, twin);
    }
    return twin == NO_RECORD ? known : twin;
}

/* Hash the blocks of an event behind a parent; opaque extras are folded in where they stand. */
static int hash_contents(Residents *self, const EngineBatch *batch, const EngineEvent *event, uint64_t seed) {
    size_t width = (size_t)self->block_size * TOKEN_BYTES;
    Py_ssize_t step = event->block_size / self->block_size, count = event->hashes * step;
    const uint8_t *at = (const uint8_t *)(batch->tokens.items + event->first_token);
    self->hashes.count = 0;
    TRY(blocks_reserve(&self->hashes, count));
    for (Py_ssize_t number = 0; number < count; number++, at += width) {
        if (event->extras && number % step == 0) {
            uint64_t extra = batch->extras.items[event->first_extra + number / step];
            seed = extra ? xxh3_64(&extra, sizeof extra, seed) : seed;
        }
        self->hashes.items[number] = seed = xxh3_64(at, width, seed);
    }
    return 0;
}

static int hold_anew(Residents *self, const EngineBatch *batch, const EngineEvent *event, Place place) {
    if (event->has_parent) {
        uint32_t before = find_block(self, event->parent, place.root);
        if (before == NO_RECORD) {
            self->counts.orphans += event->hashes;
            return 0;
        }
        place.node = last_node(self, before);
        place.parent = contents_hash(&self->contents, place.node);
        place.root = contents_root(&self->contents, place.node);
    }
    TRY(hash_contents(self, batch, event, place.parent != ROOT_HASH ? place.parent : place.root));
    Py_ssize_t step = event->block_size / self->block_size;
    const uint64_t *hashes = batch->hashes.items + event->first_hash;
    for (Py_ssize_t at = 0; at < event->hashes; at++) {
        if (at + AHEAD < event->hashes) {
            keyed_prefetch(&self->blocks, hashes[at + AHEAD]);
            keyed_prefetch(&self->contents.nodes, self->hashes.items[(at + AHEAD) * step]);
        }
        const uint64_t *contents = self->hashes.items + at * step;
        uint64_t hash = hashes[at];
        uint32_t known = keyed_find(&self->blocks, hash), node = NO_NODE;
        if (known != NO_RECORD) {
            TRY(hold_known(self, known, contents, step, &place));
        } else if (self->count >= self->most_blocks) {
            self->counts.crowded += event->hashes - at;
            return 0;
        } else {
            uint32_t block = make_block(self, hash, contents, step, &place);
            if (block == NO_RECORD || keyed_enter(&self->blocks, block) < 0) {
                return -1;
            }
            self->count++;
            node = last_node(self, block);
        }
        place.parent = contents[step - 1];
        place.node = node;
    }
    return 0;
}

/* Take an offload notice without tokens: its hashes must be known from another tier. */
static int hold_again(Residents *self, const EngineBatch *batch, const EngineEvent *event, int tier) {
    for (Py_ssize_t at = 0; at < event->hashes; at++) {
        uint32_t block = keyed_find(&self->blocks, batch->hashes.items[event->first_hash + at]);
        if (block == NO_RECORD) {
            self->counts.placeholders++;
        } else if (refer(self, block, tier) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Learn the block size, and tell whether an event's blocks are whole ones. */
static int fits(Residents *self, const EngineEvent *event) {
    int sure = event->hashes > 1 && event->tier == 0;
    if (event->block_size == self->block_size) {
        self->size_confirmed = 1;
    } else if (!self->size_confirmed && (self->block_size < 0 || sure)) {
        if (self->block_size >= 0) {
            self->counts.mismatched_blocks += event->hashes;
        }
        self->block_size = event->block_size;
        self->size_confirmed = sure;
    }
    return self->block_size > 0 && event->block_size % self->block_size == 0;
}

static int store(Residents *self, const EngineBatch *batch, const EngineEvent *event,
                 const EventTypes *types, PyObject *events) {
    if (!self->has_group) {
        self->has_group = 1;
        self->group = event->group;
    }
    if (event->group != self->group) {
        self->counts.ignored_groups += event->hashes;
        return 0;
    }
    const Tier *tier = contents_tier(&self->contents, event->tier, types, events);
    NEED(tier);
    Place place = {ROOT_HASH, NO_NODE, event->root, (int)(tier - self->contents.tiers)};
    int failed = 0;
    if (event->tokens == 0) {
        failed = hold_again(self, batch, event, place.tier);
    } else if (!fits(self, event)) {
        self->counts.partial_blocks += event->hashes;
        return 0;
    } else {
        failed = hold_anew(self, batch, event, place);
    }
    return failed < 0 ? -1 : contents_held(&self->contents, types, events);
}

/* Forget a hash's block; the oldest twin, if any, takes its place. */
static int retire(Residents *self, uint32_t block) {
    uint32_t twin = column_get(&self->twins, block);
    keyed_leave(&self->blocks, block, twin);
    self->count -= twin == NO_RECORD;
    return free_block(self, block);
}

static int remove_hashes(Residents *self, const EngineBatch *batch, const EngineEvent *event,
                         const EventTypes *types, PyObject *events) {
    if (!self->has_group || event->group != self->group) {
        self->counts.ignored_groups += event->hashes;
        return 0;
    }
    int tier = self->contents.tier_count - 1;
    while (tier >= 0 && self->contents.tiers[tier].number != event->tier) {
        tier--;
    }
    for (Py_ssize_t at = 0; at < event->hashes; at++) {
        if (at + AHEAD < event->hashes) {
            keyed_prefetch(&self->blocks, batch->hashes.items[event->first_hash + at + AHEAD]);
        }
        uint32_t block = keyed_find(&self->blocks, batch->hashes.items[event->first_hash + at]);
        if (tier < 0 || block == NO_RECORD || !references(self, tier, block)) {
            self->counts.unknown_removals++;
            continue;
        }
        if (release(self, block, tier) < 0 ||
            (!stored_upto(self, self->contents.tier_count - 1, block, -1) && retire(self, block) < 0)) {
            return -1;
        }
    }
    return contents_dropped(&self->contents, types, events);
}

int residents_fold(Residents *self, const EngineBatch *batch, const EngineEvent *event,
                   const EventTypes *types, PyObject *events) {
    switch (event->what) {
    case ENGINE_STORED:
        return store(self, batch, event, types, events);
    case ENGINE_REMOVED:
        return remove_hashes(self, batch, event, types, events);
    default:
        residents_clear(self);
        return residents_cleared(types, events);
    }
}
