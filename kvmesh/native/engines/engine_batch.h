/* One batch of an engine, read: what core.engines.kv_events.dialect makes of it, without objects. */
#pragma once

#include "base/arrays.h"
#include "base/base.h"

enum { ENGINE_STORED, ENGINE_REMOVED, ENGINE_CLEARED };

/* An event; its hashes, tokens and extras are so many of the batch's from `first_…` on. */
typedef struct {
    int what;
    int has_parent, full;            /* full: of a group that decides how much can be reused */
    Py_ssize_t first_hash, hashes;
    Py_ssize_t first_token, tokens;
    Py_ssize_t first_extra, extras;  /* one digest a block, or none */
    uint64_t parent, root;           /* root: the seed of its namespace's first blocks */
    long long block_size, group;
    int tier;
} EngineEvent;

typedef struct {
    Blocks hashes, extras;
    U32s tokens;
    EngineEvent *events;
    Py_ssize_t count, room;
    long long unknown_fields, unknown_tags;
    uint8_t *bytes; /* scratch of digests */
    Py_ssize_t byte_room;
} EngineBatch;

/* What a reader must know of names. */
typedef struct {
    PyObject *tiers;   /* dict: medium in capitals -> tier */
    PyObject *full;    /* frozenset of kinds */
    PyObject *root_of; /* (lora, salt) -> root */
    PyObject *stored, *removed, *cleared; /* types of core.engines.engine_events */
    int farthest;
    int secret; /* namespaces without any name have a root, too */
} EngineNames;

/* Read a message of the dialect that all known engines share: 1; 0: the pure decoder has to look at it,
 * and say what is wrong if anything is; -1 with an error set. Reads nothing that the pure one refuses. */
int engine_batch_read(EngineBatch *self, const EngineNames *names, const uint8_t *data, Py_ssize_t size);

/* Read a core.engines.engine_events.EngineBatch; -1 with an error set. */
int engine_batch_take(EngineBatch *self, const EngineNames *names, PyObject *batch);

void engine_batch_free(EngineBatch *self);

/* Let memory go that only a very long batch needs. */
void engine_batch_trim(EngineBatch *self);

EngineEvent *engine_batch_add(EngineBatch *self, int what);

/* Ask for the root of a namespace; -1 with an error set. */
int engine_root(const EngineNames *names, PyObject *lora, PyObject *salt, uint64_t *root);
