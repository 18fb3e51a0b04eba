/* Hashed: the sequence hashes of one prompt, all of them. */
#pragma once

#include "base/base.h"

/* core.blocks.hashing.Hashes */
typedef struct {
    PyObject_VAR_HEAD
    uint64_t at[];
} Hashed;

extern PyTypeObject hashed_type;

/* Prepare it, once; -1 with an error set. */
int hashed_ready(void);

/* Return hashes of `count` blocks, not yet written; NULL with MemoryError. */
Hashed *hashed_new(Py_ssize_t count);
