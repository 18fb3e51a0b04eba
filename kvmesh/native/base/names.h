/* Names of attributes and methods that C asks Python's objects for, made once. */
#pragma once

#include "base/base.h"

#define INTERNED(X) \
    X(affinity) X(allow) X(approximate) X(block_size) X(blocks) X(cached_tokens) X(choices) \
    X(completion_tokens) X(content) X(course_of) X(end_late) X(events) X(expected_output_tokens) \
    X(fold_record) X(hashes) X(ids) X(keep_back) X(keep_s) X(keys) X(kind) X(lora) X(lost_s) X(made) X(model) \
    X(note_answers) X(parent) X(prefilled) X(prepare) X(prompt_tokens) X(receive_shares) \
    X(request_id) X(retry_after_s) X(role) X(root) X(salt) X(samples) X(streams) X(tier) X(tokens) \
    X(turn) X(uncached_tokens) X(upto) X(used_blocks) X(verdict) X(view) X(waiting_requests)

#define DECLARE(name) PyObject *name;
extern struct Interned {
    INTERNED(DECLARE)
} interned;
#undef DECLARE

/* Make them; -1 with MemoryError set. */
int names_ready(void);
