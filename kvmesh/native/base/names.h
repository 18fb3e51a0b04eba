/* Names of attributes and methods that C asks Python's objects for, made once. */
#pragma once

#include "base/base.h"

#define INTERNED(X) \
    X(block_size) X(blocks) X(cached_tokens) X(completion_tokens) X(content) \
    X(expected_output_tokens) X(fold_record) X(hashes) X(receive_shares) X(ids) X(keys) X(kind) \
    X(lost_s) X(note_answers) X(prompt_tokens) X(retry_after_s) X(role) X(streams) \
    X(turn) X(uncached_tokens) X(upto) X(verdict)

#define DECLARE(name) PyObject *name;
extern struct Interned {
    INTERNED(DECLARE)
} interned;
#undef DECLARE

/* Make them; -1 with MemoryError set. */
int names_ready(void);
