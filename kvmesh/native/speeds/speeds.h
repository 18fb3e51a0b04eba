/* What is learned of workers from answers: how fast they are, and how long answers become.
 *
 * states.c is all that is known of one worker. speeds.c learns from prefills, output_rates.c from output;
 * speed_types.c is what Python sees of both. lengths.c forecasts lengths.
 *
 * Speeds and StepTimes have the attributes and numbers of tests/reference/workers/speeds.py and
 * tests/reference/workers/step_times.py. None of them can be part of a cycle, so the collector does not
 * know them.
 */
#pragma once

#include "speeds/states.h"

enum { KEPT_ANSWERS = 4 };

typedef struct {
    PyObject_HEAD
    double step_tokens, weight, tokens, weighted_ms, tokens_tokens, tokens_ms;
} StepTimes;

/* What is learned of one worker. Whoever keeps one takes a reference; what a removed one learns is
 * lost.
 */
typedef struct {
    PyObject_HEAD
    Ratio *prefill; /* never NULL, the worker's as long as this lives */
    double open_tokens, open_ms, open_s, interval_ms, residence_ms;
    long long measured_tokens, measured_us;
    int measured, seen, removed;
    /* The last answers, and how far they are beyond what is usual. */
    double answer_tokens[KEPT_ANSWERS], answer_ms[KEPT_ANSWERS], beyond;
    long long answers;
    int answers_aged, answers_seen;
} WorkerSpeed;

typedef struct {
    PyObject_HEAD
    StepTimes *steps;
    PyObject *workers; /* dict: name -> WorkerSpeed */
    Ratio *fleet;
    double fleet_ms_per_token, uncached_tokens, output_tokens;
    double interval_ms, residence_ms;            /* the fleet's, 0 without any */
    double scatter_weights, scatter_squares, scatter_products;
    double compared_to;
    long long since_compared, since_aged;
    StepTimes answers; /* no object: its numbers alone */
    double usual_ms, mean_answer;
    long long answering, since_answers_compared, since_answers_aged; /* answering: workers */
} Speeds;

extern PyTypeObject step_times_type, worker_speed_type, speeds_type;

/* Return what is known of a worker, borrowed and made if absent; NULL with an error set. `name` is a
 * str.
 */
WorkerSpeed *speeds_worker(Speeds *self, PyObject *name);

/* Return what `Speeds.ms_per_token`, `ms_per_output_token` and `residence_ms` do; `known`
 * may be NULL in the last two: nothing is known of that worker.
 */
static inline double speeds_ms_per_token(const Speeds *self, const WorkerSpeed *known) {
    return self->fleet_ms_per_token * known->prefill->factor;
}

static inline double speeds_ms_per_output_token(const Speeds *self, const WorkerSpeed *known) {
    return known != NULL && known->interval_ms != 0.0 ? known->interval_ms : self->interval_ms;
}

static inline double speeds_residence_ms(const Speeds *self, const WorkerSpeed *known) {
    return known != NULL && known->residence_ms != 0.0 ? known->residence_ms : self->residence_ms;
}

/* Learn, as the methods of these names do. They cannot fail. */
void speeds_first_token(Speeds *self, WorkerSpeed *known, long long uncached_tokens,
                        double service_s, double now);
void speeds_output(Speeds *self, WorkerSpeed *known, long long tokens, double elapsed_s);
void speeds_finished(Speeds *self, WorkerSpeed *known, double residence_s,
                     long long output_tokens);
void speeds_measured(Speeds *self, WorkerSpeed *known, long long tokens, long long busy_us);

void speeds_answered(Speeds *self, WorkerSpeed *known, long long tokens, double elapsed_s);

/* Return what `Speeds.answer_tokens` does. */
static inline double speeds_answer_tokens(const Speeds *self, long long expected) {
    return (expected ? (double)expected : self->mean_answer) + self->answers.step_tokens;
}

/* Return a measured time in ms, made harmless: clocks may step. */
double speeds_milliseconds(double seconds);

/* Learn from a step that prefilled `tokens` (> 0) in `ms` at the fleet's usual speed. O(1). */
void step_times_fold(StepTimes *self, double tokens, double ms);

/* Begin without any evidence but the prior; `fleet` is there. */
void speeds_begin(Speeds *self, double prior_ms_per_token);

/* Remove a worker, known or not; -1 with an error set. */
int speeds_forget(Speeds *self, PyObject *name);

/* Prepare what is computed once, and the type of `WorkerSpeed`; -1 with an error set. */
int speeds_ready(void);
