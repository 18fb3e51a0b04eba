/* Ids of chats of known form, and the cache of texts that core.prompts.segment_cache.ByteBudgetCache
 * is for other keys.
 */
#pragma once

#include "base/base.h"

typedef struct {
    PyObject_HEAD
    PyObject *young, *old; /* dicts: str -> bytes */
    Py_ssize_t half, young_size, old_size;
    long long hits, misses;
} TextCache;

typedef struct {
    PyObject_HEAD
    TextCache *cache;
    PyObject *encode_batch; /* texts -> packed ids of each */
    PyObject *forms; /* dict: roles -> (hints, marks, parts, openings), checked when they were taught */
    long long packed;
} TextPacker;

#define ENTRY_OVERHEAD 136 /* bytes, counted with each text that is kept */

extern PyTypeObject text_cache_type, text_packer_type;

/* Return what is kept for a text, a new reference; NULL without an error: nothing. */
PyObject *text_cache_get(TextCache *self, PyObject *text);

/* Keep ids of a text; -1 with an error set. */
int text_cache_put(TextCache *self, PyObject *text, PyObject *ids);

/* Prepare what it needs, once; -1 with RuntimeError set. */
int text_cache_ready(void);
