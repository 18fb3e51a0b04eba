/* How fast workers prefill and decode: core.workers.speeds.Speeds and StepTimes, the same attributes
 * and numbers. None of them can be part of a cycle, so the collector does not know them.
 */
#ifndef KVMESH_SPEEDS_H
#define KVMESH_SPEEDS_H

#include "loads.h"

typedef struct {
    PyObject_HEAD
    double step_tokens, weight, tokens, weighted_ms, tokens_tokens, tokens_ms;
} StepTimes;

/* core.workers.speeds._Worker. Whoever keeps one takes a reference; what a removed one learns is
 * lost.
 */
typedef struct {
    PyObject_HEAD
    Ratio *prefill; /* never NULL, the worker's as long as this lives */
    double open_tokens, open_ms, open_s, interval_ms, residence_ms;
    long long clipped, measured_tokens, measured_us;
    int measured, seen, removed;
} WorkerSpeed;

typedef struct {
    PyObject_HEAD
    StepTimes *steps;
    PyObject *workers; /* dict: name -> WorkerSpeed */
    PyObject *report_type;
    Ratio *fleet;
    double fleet_ms_per_token, uncached_tokens, output_tokens;
    double interval_ms, residence_ms;            /* the fleet's, 0 without any */
    double scatter_weights, scatter_squares, scatter_products;
    double compared_to;
    long long since_compared, since_aged;
} Speeds;

extern PyTypeObject step_times_type, worker_speed_type, speeds_type;

/* Return what is known of a worker, borrowed and made if absent; NULL with an error set. `name` is a
 * str.
 */
WorkerSpeed *speeds_worker(Speeds *self, PyObject *name);

/* Return `core.workers.speeds.Speeds.ms_per_token`, `ms_per_output_token` and `residence_ms`; `known`
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

#endif
