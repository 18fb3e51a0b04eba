/* The decision: one call from a scanned body to a booked worker, one from the answer to what is learned.
 *
 * overlaps.c finds what each worker of a cohort has of the prompt. costs.c prices workers by a formula that
 * programs.c read, over the terms of terms.c. forecasts.c says which are in time, as far as time_errors.c
 * learned that times are off. choose.c takes one, homes.c says which of equal ones by the request's key, decide.c asks
 * for it, book.c books and records it, finish.c ends it; runners_up.c says who would have been next.
 * course.c is what requests are decided by, decider.c what Python sees.
 */
#pragma once

#include "beliefs/approx.h"
#include "bodies/scanned.h"
#include "decide/forecasts.h"
#include "index/view.h"
#include "insight/records.h"
#include "insight/totals.h"
#include "loads/sequences.h"
#include "peers/outbox.h"
#include "prompts/hashed.h"
#include "speeds/lengths.h"
#include "speeds/speeds.h"

enum { COHORTS = 8, MOST_SIZES = 8 };

/* Which of some workers is behind which slot; NULL where it is none of them. */
typedef struct {
    WorkerState **states;
    uint32_t *indexed; /* of what is believed: 1 + the worker's slot in the view, 0 for none there; NULL:
                       nobody is grouped */
    uint32_t count;
    uint64_t changes; /* of the Approx whose slots they are */
} Slots;

/* What a decision consists of: core.dispatch.phases. */
enum { HASH, FIND, SCORE, DECIDE, PHASES };

/* What is believed cached: what this replica routed, and what others told that they did. */
enum { ROUTED, HEARD, BELIEFS };

/* Which of the workers that may take a request is behind which slot. */
typedef struct {
    PyObject *states; /* tuple of WorkerState; NULL: nothing here */
    View *view;       /* NULL: no index */
    Slots indexed, believed[BELIEFS]; /* of `states` */
    uint64_t used; /* when, in questions */
} Cohort;

enum { MODE_KV, MODE_ROUND_ROBIN, MODE_RANDOM, MODE_LEAST_LOADED, MODE_POWER_OF_TWO, MODES };

/* What requests are decided by. */
typedef struct {
    PyObject_HEAD
    Formula *formula;
    PyObject *policy; /* str */
    PyObject *maker;  /* makes a Decision of a Record */
    PyObject *draw;   /* takes the costs, returns the place of the worker to take; None: the least */
    PyObject *price;  /* takes the terms of all, returns their costs; NULL: `formula` does */
    double weights[MOST_WEIGHTS], margin;
    Py_ssize_t weights_count;
    int mode, uses_caches; /* looks: caches count */
} Course;

/* How often prompts with a key came lately. */
typedef struct {
    uint64_t seed;   /* of key and beginning, 0: of none */
    double level, at_s; /* requests not worked off at that time */
} Rate;

enum { RATES = 1024 }; /* a power of 2 */

typedef struct {
    PyObject_HEAD
    Sequences *sequences;
    Speeds *speeds;
    Lengths *lengths;
    Approx *believed[BELIEFS]; /* NULL: none */
    BookingOutbox *outbox; /* NULL: nobody is told of bookings */
    Ring *ring;
    Totals *totals;
    TokenCounts *counts;
    Course *own;      /* of requests that name none */
    const Course *by; /* of the decision under way, or of the last one's */
    PyObject *index;      /* core.index.index.KvIndex, NULL: no events */
    PyObject *distrusted; /* set of workers whose events do not count */
    PyObject *late;       /* core.members.late_prompts.LatePrompts */
    PyObject *late_workers; /* its dict of workers */
    PyObject *late_waiting; /* its dict of bookings that are kept back, by worker */
    PyObject *out;        /* set of workers that something speaks against */
    PyObject *health;     /* core.members.health.Health */
    PyObject *begun;      /* told of first tokens of requests with inputs */
    PyObject *random;     /* draws from [0, 1) */
    PyObject *replica;    /* str */
    double predict_ttl_s, approx_ttl_s;
    long long block_size;
    long long others[MOST_SIZES]; /* tokens: of further blocks that events tell of */
    int other_count;
    int busy;        /* a decision is under way */
    int likeliest;   /* it is a dry run: nothing is drawn */
    int smallest;    /* of equal workers, those that have least cached are taken */
    Histogram *phases[PHASES]; /* NULL: nobody counts */
    unsigned timed;            /* requests that `decide` was asked for */
    uint64_t found_ns;         /* when the last search ended, if `apart` */
    int apart;                 /* the decision under way is timed phase by phase */
    long long decisions, overlap_blocks, request_blocks;
    Cohort cohorts[COHORTS];
    Rate rates[RATES]; /* by seed */
    uint64_t question; /* of cohorts */
    uint64_t priced;   /* in which all of a cohort were priced last, 0: costs are of no cohort */
    /* Scratch, kept from call to call. */
    Drops event_drops, believed_drops;
    Cut cut;
    Py_ssize_t *withheld; /* by slot of the view: so deep nothing is believed of the worker */
    uint32_t withheld_room, withheld_count; /* count 0: nobody is withheld */
    ScanTokens ids;
    uint64_t *hashes, *other_hashes;
    double *costs;
    Py_ssize_t *ties;
    PyObject **names; /* borrowed */
    Py_ssize_t hash_room, other_room, cost_room;
} Decider;

/* A request that was decided and is on its way. */
typedef struct {
    PyObject_HEAD
    Record *record;
    Booking *booking;     /* live or not; NULL: another one has its id */
    PyObject *request_id; /* str */
    PyObject *model;      /* str */
    Hashed *hashes;       /* NULL: nothing was hashed, or let go with the first token */
    Forecast forecast;
    long long prompt_tokens, expected_output_tokens, choices, event_tokens; /* told UNKNOWN: none */
    char streams, waiting;
    char late;      /* not believed cached yet */
    char prefilled; /* another worker computed the prompt */
    char approximate; /* no event confirms its hashes */
    Hashed *taught; /* those that its answer may teach of its worker's cache; NULL: events do */
    double before;  /* `Approx.before` of its prompt */
    double sent_s;  /* when it was recorded, NAN: not yet */
    double unseen_s;
    PyObject *inputs; /* core.routing.choice.inputs.Inputs, NULL: none */
} Placed;

extern PyTypeObject course_type, decider_type, placed_type;

/* Return whether events say what `worker` caches (OverlapView.confirms), -1 with an error set. */
int decider_confirms(const Decider *self, PyObject *worker);

/* runners_up(states, most) -> names | None: who would have been chosen next, the best first; None: the
 * last decision was not among `states`, or not by cost.
 */
PyObject *decider_runners_up(Decider *self, PyObject *const *args, Py_ssize_t nargs);

/* Return the cohort of `states` with its slots, made when it is another one than before; NULL with an
 * error set. Borrowed until the next call.
 */
Cohort *decider_cohort(Decider *self, PyObject *states);

void cohort_clear(Cohort *cohort);

/* What is asked of all workers of a cohort. */
typedef struct {
    Asked asked;
    WorkerState *const *states;
    Py_ssize_t count;
    const uint64_t *hashes;
    Py_ssize_t blocks;
    const uint8_t *ids; /* the prompt's tokens, NULL: not known */
    uint64_t root;      /* the seed of its first block */
    Py_ssize_t id_count;
    int prepared;       /* some worker has to bring or load something first */
    uint64_t affinity;  /* what stands for its prompt cache key, 0: it has none */
    long long estimated;
} Question;

/* Return the place among the states of the worker to take; -1 with an error set. Writes `costs` of
 * the decider in mode kv. `allow` are Forecasts, which tell those to choose among; NULL: all.
 */
Py_ssize_t choose_by_cost(Decider *self, const Question *question, PyObject *allow);
Py_ssize_t choose_blind(Decider *self, const Question *question);

/* Return what the home of a request with a key is found by; 0: it has no key, or with that as many came
 * lately as a home is for.
 */
uint64_t home_seed(const Decider *self, const Question *question);

/* Count a request that is booked, if it has a key. */
void home_count(Decider *self, const Question *question, double now);

/* Write what `count` workers from the `first` on cost; -1 with an error set. */
int price(Decider *self, const Question *question, Py_ssize_t first, Py_ssize_t count);

/* Note how much of the prompt each worker has; -1 with an error set. */
int find_overlaps(Decider *self, Question *question, const Cohort *cohort, double now);

/* Return the size of one worker's cached tree, blocks; -1 with an error set. */
long long cached_blocks(const Decider *self, const WorkerState *state);

/* Write every term of one worker; -1 with an error set. */
int write_terms(Decider *self, const Question *question, WorkerState *state, CandidateTerms *out);

/* What is asked about one request, which stands before anybody is looked at. */
typedef struct {
    PyObject *request_id, *name; /* bytes; str, None: that of the id */
    PyObject *model, *tenant;    /* str */
    PyObject *cohort, *states; /* states: those of the cohort that may take it */
    PyObject *inputs; /* core.routing.choice.inputs.Inputs, NULL: none */
    PyObject *hashed; /* owned: all hashes, for `inputs`; NULL: none, or not made yet */
    double most_wait_ms; /* at its worker, else nothing is booked */
    double now;
    long long prompt_tokens, expected, choices;
    int whole, streams;
    int prefilled;   /* another worker computes the prompt */
    int approximate; /* no event confirms its hashes */
    long long keep_s; /* for how long the prompt shall be kept, seconds; 0: nobody said */
    Forecast forecast;
    Py_buffer packed; /* the token ids, if they were given */
} Request;

/* Return the prompt's hashes as an object, a new reference, made once; NULL with MemoryError set. */
Hashed *hash_all(const Request *request, const Question *question);

/* Book a request where `record` says, by the course of the present decision, and believe its prompt cached
 * there; a new reference, NULL with an error set and nothing booked.
 */
Placed *book(Decider *self, const Request *request, const Question *question, Record *record);

/* Record what was booked under the id that its client knows and tell the outbox; `again`: the record of
 * the attempt before, which stands for this one from now on, NULL: it is the first. -1 with an error set.
 */
int enter(Decider *self, Placed *placed, PyObject *request_id, PyObject *tenant, Record *again,
          double now);

/* Release what was booked of a request that cannot be placed after all, keeping the error. */
void unbook(Decider *self, Placed *placed);

PyObject *decider_book(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_enter(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_begin(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_grow(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_release(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_free(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_learn(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_prefilled_s(Decider *self, PyObject *booking);
PyObject *decider_decide(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_choose(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_seen(Decider *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *decider_finish(Decider *self, PyObject *const *args, Py_ssize_t nargs);
