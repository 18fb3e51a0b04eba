/* Names of attributes and methods that C asks Python's objects for, made once. */
#ifndef KVMESH_NAMES_H
#define KVMESH_NAMES_H

#include "base/base.h"

#define INTERNED(X) \
    X(best_overlap_blocks) X(block_size) X(blocks) X(by_cache) X(cached_tokens) \
    X(candidates) X(capacity_blocks) X(chosen) X(completion_tokens) X(considered) X(content) \
    X(expected_output_tokens) X(fold_record) X(hashes) X(receive_shares) X(ids) X(keys) X(kind) \
    X(lost_s) X(ms_per_token) X(note_answers) X(overlap_blocks) X(policy) X(prompt_tokens) \
    X(remove) X(retry_after_s) X(role) X(streams) X(take) X(total_blocks) X(turn) \
    X(uncached_tokens) X(upto) X(verdict) X(worker)

#define DECLARE(name) PyObject *name;
extern struct Interned {
    INTERNED(DECLARE)
} interned;
#undef DECLARE

/* Make them; -1 with MemoryError set. */
int names_ready(void);

#endif
