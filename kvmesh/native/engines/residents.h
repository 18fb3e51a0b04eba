/* One engine's blocks by its own hashes, over `Contents`; in Python: tests/reference/engines/residency.py.
 *
 * 22 bytes a block with its place in the index: an engine's hash, the node of its content, and how often
 * the nearest tier stored it. What is rare stands beside: counts of further tiers, contents of blocks
 * of several block sizes, twins.
 */
#pragma once

#include "engines/contents.h"

/* Blocks that could not be followed; core.engines.kv_events.residency.ResidencyStatistics. */
typedef struct {
    long long orphans, partial_blocks, ignored_groups, placeholders, unknown_removals;
    long long mismatched_blocks, crowded;
} ResidentCounts;

/* A block is a KeyedRecord: its key the engine's hash, `one` its node, `two` its references of the first
 * tier. */
typedef struct {
    Keyed blocks;
    Contents contents;
    Column twins;     /* the next block of the same hash, NO_RECORD for none */
    Column spans;     /* number + 1 of the nodes of a block of several, 0 for none */
    U32s *span_items;
    uint32_t span_count, span_room;
    U32s free_spans;
    long long count;  /* of hashes */
    long long most_blocks, most_twins;
    uint32_t most_references;
    long long block_size; /* 0: of no use; -1: unknown */
    int size_confirmed;
    int has_group;
    long long group;
    ResidentCounts counts;
    Blocks hashes; /* scratch */
} Residents;

void residents_init(Residents *self);

/* Forget every block; sizes, groups and counts stay. */
void residents_clear(Residents *self);

/* Fold one event of a batch; -1 with an error set, and then nothing but `residents_clear` may follow. */
int residents_fold(Residents *self, const EngineBatch *batch, const EngineEvent *event,
                   const EventTypes *types, PyObject *events);

/* Return what is held as core.engines.kv_events.residency.Handover has it; NULL with an error set. */
PyObject *residents_hand_over(const Residents *self);

/* A block of several contents, or one, as it was kept; `counts` has one for each tier. */
typedef struct {
    const uint64_t *contents;
    Py_ssize_t step;
    uint64_t parent, root;
    const uint32_t *counts; /* not all 0 */
} Kept;

/* Hold a kept block, of a hash that is known its youngest twin: 1, 0 where there is no room for it, -1
 * with MemoryError set. What changes is counted, and not said before `contents_held`. */
int residents_hold(Residents *self, uint64_t hash, const Kept *kept);

/* Return (group or -1, block size, tiers, blocks) as core.engines.kv_events.saved_cache has them; NULL
 * with an error set. O(blocks) */
PyObject *residents_save(const Residents *self);

/* Hold such blocks in an empty cache, whose tiers are open: 1, 0 where they are none, or too many, -1
 * with MemoryError set. After either only `residents_clear` may follow. */
int residents_load(Residents *self, const uint8_t *at, Py_ssize_t size);

/* Append Cleared; -1 with an error set. */
int residents_cleared(const EventTypes *types, PyObject *events);
