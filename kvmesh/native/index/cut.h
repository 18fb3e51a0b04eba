/* Where hits of workers with several cache groups end: what a search found, cut to that. The same
 * as core.index.ends.
 */
#pragma once

#include "index/search.h"

/* How the ends of some workers are read: core.blocks.events.Reuse. */
typedef struct {
    Mask members;
    uint32_t lookahead; /* tokens */
    uint32_t drop;      /* blocks */
} Rule;

/* All that a cut needs of an index, as long as nobody gets another rule or table. */
typedef struct {
    Table *young, *old; /* of ends; NULL for none */
    Rule *rules;
    uint32_t rule_count; /* 0: nobody is grouped */
    uint64_t *grouped;   /* the members of all rules, as many words as are live */
} Ends;

/* One grouped worker that holds the first `depth` blocks, of which `hit` are of use. */
typedef struct {
    Py_ssize_t hit, depth;
    uint32_t slot;
} Hit;

/* What a cut found, and its memory, which stays for the next one. All zeros is an empty one. */
typedef struct {
    Hit *hits; /* longest first */
    Py_ssize_t count, room;
    uint64_t *waiting;
    Py_ssize_t *chains; /* by slot: how many blocks one that waits holds */
    uint32_t words;     /* that both have room for */
    Drops drops;
} Cut;

/* Read (young, old, ((lookahead, drop, mask), ...)) or None; -1 with an error set. Only bits of the
 * first `live_words` words count.
 */
int ends_read(Ends *self, PyObject *reported, uint32_t live_words);

int ends_traverse(const Ends *self, visitproc visit, void *arg);
void ends_clear(Ends *self);

/* Cut drops that were found of `prompt`, whose `ids` must be asked for before if a rule looks ahead;
 * `cut` has the grouped workers among them, none where nothing changed. -1 with an error set. Runs
 * no Python code. */
int ends_cut(const Ends *self, const Prompt *prompt, uint32_t live_words, Drops *found, Cut *cut);

/* Whether any rule looks at tokens. */
int ends_have_lookahead(const Ends *self);

void cut_free(Cut *self);
