/* Where along a prompt workers drop out, found without a Python object made. */
#pragma once

#include "index/index.h"

/* The workers whose cached prefix ends after so many blocks. */
typedef struct {
    Py_ssize_t depth;
    uint64_t *words;      /* bit s of word w: slot 64 w + s; valid until the next search into it */
    uint32_t start, size; /* words before `start` are 0; neither words[start] nor the last one is */
} Drop;

/* Who holds a block: a set of each table, NO_SET for none in one; NOBODY, NOBODY: not there. */
typedef struct {
    uint32_t newer, older;
} Holders;

typedef struct {
    Py_ssize_t at;
    Holders holders;
} Post;

/* Drops, deepest first and of disjoint workers, and the memory of the search, which stays for the
 * next one. All zeros is an empty one. */
typedef struct {
    Drop *drops;
    Py_ssize_t count, room;
    uint64_t *words, *seen;
    size_t word_count, word_room, seen_room;
    Post *posts;
    Py_ssize_t post_count, post_room;
} Drops;

/* A prompt's hashes as far as they are known. `more` makes at least `wanted` of them known, or all
 * there are, and may change `known` and `count`; NULL: all are known. -1 with an error set. `ids`
 * are its tokens as u32s of any alignment, `block_size` a block; NULL: not known. */
typedef struct Prompt Prompt;
struct Prompt {
    const uint64_t *known;
    Py_ssize_t count;
    int (*more)(Prompt *self, Py_ssize_t wanted);
    const uint8_t *ids;
    Py_ssize_t id_count, block_size;
};

/* Find the drops of `hashes` in both tables, of which the older may be NULL; only bits of `live`
 * count. The look-ups are those of `kvmesh.core.index.search.find_drops`, in the same order.
 * -1 with MemoryError set. O(drops x log(count)). */
int table_search(const Table *newer, const Table *older, const uint64_t *hashes, Py_ssize_t count,
                 const uint64_t *live, uint32_t live_words, Drops *found);

/* The same of a prompt hashed as far as it is asked for; RuntimeError when `more` changed a table. */
int table_search_prompt(const Table *newer, const Table *older, Prompt *prompt,
                        const uint64_t *live, uint32_t live_words, Drops *found);

void drops_free(Drops *self);
