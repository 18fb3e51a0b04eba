/* Record: one request's decision and what became of it, and Ring: the last of them. Whoever decides
 * fills a record and appends it; whoever ends it writes the end. All else reads the ring in a later
 * turn (core.insight.decision_log).
 * Neither type is known to the collector: `maker` and `decision` must not lead back to a ring.
 */
#pragma once

#include "prompts/hashed.h"
#include "insight/terms_table.h"

/* core.cost.terms.Candidate without its worker. */
#define COUNT(name) long long name;
#define NUMBER(name) double name;
#define TEXT(name)
typedef struct {
    CANDIDATE_FIELDS(COUNT, NUMBER, TEXT)
} CandidateTerms;
#undef COUNT
#undef NUMBER
#undef TEXT

/* core.insight.decision_record.State */
enum { OPEN, FINISHED, CLIENT_GONE, FAILED, CUT, REFUSED, STATES };
extern const char *const state_names[STATES];

/* A number that is not known: a time is NAN, a count UNKNOWN. */
#define UNKNOWN (-1LL)

typedef struct {
    PyObject_HEAD
    /* Owned, each NULL for none; those marked * must be set before the record is appended. */
    PyObject *request_id; /* bytes * */
    PyObject *worker;     /* str * */
    PyObject *policy;     /* str *: the mode, or the formula of mode kv */
    PyObject *tenant;     /* str, NULL: "" */
    PyObject *decision;   /* Decision, NULL: not made yet */
    PyObject *maker;      /* (record) -> Decision, asked once and let go; NULL where `decision` is
                             set. Reads `terms`, `weighed_terms`, `scores`, … of the record */
    PyObject *failures;   /* tuple[str], NULL: () */
    PyObject *reported;   /* Usage, whose numbers are below; NULL: none */
    PyObject *left_out, *traced; /* NULL: None */
    Hashed *hashes; /* let go once read or dropped */
    Py_ssize_t block_count;
    /* All candidates, of PyMem_Malloc, where the decision keeps them: `weighed` of them, `scores`
     * beside; `workers` is a tuple of their names in that order. Then `kept_candidates` is
     * `weighed` if that is more than 1. */
    CandidateTerms *weighed_terms;
    double *scores;
    PyObject *workers;
    Py_ssize_t weighed;
    CandidateTerms chosen;
    double score;
    long long prompt_tokens, block_size, considered, best_overlap_blocks, told_blocks;
    unsigned char by_cache, overridden, estimated; /* flags; estimated: no token was counted */
    unsigned char has_usage, state;
    /* Times in seconds of the caller's clock; NAN: not yet. held_ms NAN: was not held. */
    double decided_s, first_token_s, ended_s, held_ms;
    int status, attempts;
    long long output_tokens, round_robin_blocks; /* the second UNKNOWN until read */
    long long usage_prompt, usage_completion, usage_cached; /* usage_cached UNKNOWN: not told */
    double forecast_tokens;
    long long forecast_samples, forecast_family; /* forecast_samples UNKNOWN: none */
    /* The ring's: */
    long long number, version, waiting_blocks, kept_candidates;
} Record;

typedef struct {
    PyObject_HEAD
    Record **slots; /* `capacity` of them, strong; number n is in slot (n - 1) % capacity */
    Record **ended; /* circular, strong: ended and not read */
    PyObject *thin;  /* Decision -> Decision with the chosen candidate alone */
    Py_ssize_t capacity, count, ended_head, ended_count;
    long long number;  /* of the newest record; the oldest kept is number - count + 1 */
    long long version; /* grows with every change of any record */
    long long cursor;  /* number of the last record that was read */
    long long whole;   /* records up to this number keep the chosen candidate alone */
    long long candidates, max_candidates, waiting_blocks, max_waiting_blocks;
    long long whole_per_s, second, asked; /* decisions asked about in the present second */
    long long dropped, dropped_ends; /* records and ends that nobody will read */
} Ring;

extern PyTypeObject record_type, ring_type;

/* Return a record without anything in it: numbers 0, times NAN, state OPEN, attempts 1. NULL with
 * MemoryError.
 */
Record *record_new(void);

/* Take what the engine counted, a core.engines.sse.Usage or None; -1 with an error set, and nothing
 * taken.
 */
int record_report(Record *record, PyObject *usage);

/* Return the arguments of core.cost.terms.Candidate, a new tuple; NULL with an error set. */
PyObject *terms_tuple(PyObject *worker, const CandidateTerms *terms);

/* Let its hashes go. */
void record_forget_hashes(Record *record);

/* Let the terms go of all candidates but the chosen one. */
void record_forget_candidates(Record *record);

/* Stand for the choice that another record, which nobody else has, was made of; that lets what it kept of
 * the others go.
 */
void record_stand_for(Record *record, Record *other);

/* Return the ms from the decision to the first token, which it must have. */
static inline double record_ttft_ms(const Record *record) {
    double waited_s = record->first_token_s - record->decided_s;
    return (waited_s > 0.0 ? waited_s : 0.0) * 1000.0;
}

/* Append a record whose decision stands in it; number and version it. O(1), amortised. The oldest
 * leaves a full ring; where too many prompts wait to be read, this one's is not kept and counts as
 * dropped. -1 with an error set only if a Decision could not be thinned.
 */
int ring_append(Ring *ring, Record *record);

/* Note that a record stands for another decision, whose numbers the caller wrote, and count the
 * attempt; it kept `kept_before` candidates. -1 with an error set.
 */
int ring_again(Ring *ring, Record *record, long long kept_before);

/* Return a state by its name, -1 with ValueError set. */
int state_from(PyObject *name);

static inline void ring_first_token(Ring *ring, Record *record, double now) {
    record->first_token_s = now;
    record->version = ++ring->version;
}

/* Note the end; usage, output_tokens, … are set by the caller before. It is read later, or dropped
 * and counted where too many ends wait.
 */
void ring_ended(Ring *ring, Record *record, int state, int status, double now);
