/* What a stream has said so far, kept to go on with it on another engine: see keep.c. */
#pragma once

#include "base/arrays.h"

/* Bytes of an event; `at` is NULL for what is not there. */
typedef struct {
    const char *at, *end;
} Span;

/* A part of a piece that is to be replaced by `null`. */
typedef struct {
    Py_ssize_t at, end;
} IdList;

/* Text that passed, of one kind: bytes as JSON escapes them, and their hash. */
typedef struct {
    Py_ssize_t size;
    uint64_t hash;
} Told;

/* The last event of one text, without that and its list of ids: most events are like the one before. */
typedef struct {
    char *bytes; /* the three parts in a row */
    Py_ssize_t before, between, behind, room;
    char kind, has_list; /* which text; whether a list of ids stands before `behind` */
} Likeness;

enum { TOLD_CONTENT, TOLD_REASONING, TOLD_ARGUMENTS, TOLD_KINDS };
enum { LOST_NOT, LOST_TOO_LONG, LOST_MALFORMED, LOST_NO_IDS };

typedef struct {
    Py_ssize_t most_bytes, most_held; /* of both arrays together; of one event */
    U32s prompt, tokens; /* the prompt's items are gone once it is whole, its count stays */
    uint8_t *packed;     /* the prompt whole, 7 bits of an id a byte, least first: half of its size */
    Py_ssize_t packed_size;
    U32s marks; /* two words a mark, see `mark_event` */
    Told told[TOLD_KINDS];
    Py_ssize_t tool_calls, choices;
    IdList *cuts; /* of the piece that is being read, in order */
    Py_ssize_t count, room;
    Likeness last;
    char strip, prompted, finished, lost;
    char stopped; /* nothing is read any more */
    char marking; /* each event leaves a mark */
} Keeper;

/* What one event says of one choice. */
typedef struct {
    Span texts[TOLD_ARGUMENTS], calls, ids, prompt; /* the texts by kind */
    Py_ssize_t index;
    char finished;
} ChoiceDelta;

/* What one event says. */
typedef struct {
    ChoiceDelta first;  /* of choice 0, if that is there */
    Span prompt; /* beside the choices */
    Py_ssize_t choices;
    int has_first, has_choices;
} Said;

/* Read the JSON of an event, and note the lists of ids as cuts: offsets from `piece`. Return 0, 1 for
 * what is malformed, -1 with MemoryError set.
 */
int scan_output(Keeper *self, const char *piece, const char *at, const char *end, Said *said);

/* Go through tool calls that were read before: count those begun, and add their arguments. */
void fold_calls(Keeper *self, const Span *calls);

/* Append the ids of a list that was read before; 0 for more than fit, -1 with MemoryError set. */
int fold_ids(Keeper *self, const Span *list, U32s *to);

/* Return the FNV-1a of text behind text of hash `state`, xor that of no text: 0 is the hash of none. */
uint64_t text_hash(uint64_t state, const char *at, const char *end);

static inline void add_text(Told *told, const Span *text) {
    if (text->at != NULL) {
        told->size += text->end - text->at;
        told->hash = text_hash(told->hash, text->at, text->end);
    }
}

/* Return a keeper; NULL with MemoryError set. */
Keeper *keeper_new(Py_ssize_t most_bytes, int strip, int marking, Py_ssize_t most_held);
void keeper_free(Keeper *self);
Py_ssize_t keeper_size(const Keeper *self);

/* Read what passes, which ends behind a blank line; return what is to pass instead, or itself. Takes
 * the reference; NULL with MemoryError set.
 */
PyObject *keeper_pass(Keeper *self, PyObject *passed);

/* The same of whole chunks of HTTP, a new reference. */
PyObject *keeper_pass_chunks(Keeper *self, PyObject *chunks);

/* Return what was kept, by calling `make`. */
PyObject *keeper_tell(const Keeper *self, PyObject *make);

extern PyMethodDef native_keep_methods[];
