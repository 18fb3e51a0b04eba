/* One engine's blocks by its own hashes: core.engines.kv_events.residency over `Contents`.
 *
 * 22 bytes a block with its place in the index: an engine's hash, the node of its content, and how often
 * the nearest tier stored it. What is rare stands beside: counts of further tiers, contents of blocks
 * of several block sizes, twins.
 */
#ifndef KVMESH_RESIDENTS_H
#define KVMESH_RESIDENTS_H

#include "contents.h"

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

void residents_init(Residents *self, uint64_t seed);

/* Forget every block; sizes, groups and counts stay. */
void residents_clear(Residents *self);

/* Fold one event of a batch; -1 with an error set, and then nothing but `residents_clear` may follow. */
int residents_fold(Residents *self, const EngineBatch *batch, const EngineEvent *event,
                   const EventTypes *types, PyObject *events);

/* Return what is held as core.engines.kv_events.residency.Handover has it; NULL with an error set. */
PyObject *residents_hand_over(const Residents *self);

/* Append Cleared; -1 with an error set. */
int residents_cleared(const EventTypes *types, PyObject *events);

#endif
