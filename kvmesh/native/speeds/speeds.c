/* Speeds and StepTimes: see speeds.h. The operations and their order are those of
 * tests/reference/workers/speeds.py and relative_speed.py, where the reasons stand, too.
 */
#include "speeds/speeds.h"

/* Python's min and max keep the first of equals. */
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((b) > (a) ? (b) : (a))

#define MIN_SAMPLE_TOKENS 256
#define SAME_STEP_S 0.002
#define MAX_STEP_TOKENS 4096.0
#define GRACE_MS 250.0
#define PRIOR_TOKENS 16.0
#define DRIFT 0.05
#define COMPARED_EVERY 64
#define AGED_AFTER 4
#define HALF_LIFE_TOKENS 65536.0
#define OUTLIER 8.0
#define INTERVAL_WEIGHT 0.02
#define RESIDENCE_WEIGHT 0.05
#define PROMPT_WEIGHT 0.05
#define MAX_MS 3600000.0
#define MIN_MS_PER_TOKEN 1e-4
#define LEAST_SAMPLES 16.0
#define LEAST_SPREAD 0.02
#define BALANCE_TOKENS 256.0
#define DEVIATIONS 3.0
#define FIRST_VARIANCE 0.1
#define MOST_ERROR 2.0
#define MOST_PERSISTENCE 0.8

static double keep_step, keep_scatter;

int speeds_ready(void) {
    /* Not left to the compiler, whose pow is another than Python's. */
    volatile double half = 0.5;
    keep_step = pow(half, 1.0 / 256.0);
    keep_scatter = pow(half, 1.0 / 64.0);
    return PyType_Ready(&worker_speed_type);
}

double speeds_milliseconds(double seconds) {
    double ms = seconds * 1000.0;
    return isfinite(seconds) ? MIN(MAX(0.0, ms), MAX_MS) : 0.0;
}

static double blend(double old, double sample, double weight) {
    if (old <= 0.0) {
        return sample;
    }
    if (sample < old / OUTLIER) {
        sample = old / OUTLIER;
    } else if (sample > old * OUTLIER) {
        sample = old * OUTLIER;
    }
    return old + weight * (sample - old);
}

void step_times_fold(StepTimes *self, double tokens, double ms) {
    double weight = BALANCE_TOKENS / (tokens + BALANCE_TOKENS);
    self->weight = self->weight * keep_step + weight;
    self->tokens = self->tokens * keep_step + weight * tokens;
    self->weighted_ms = self->weighted_ms * keep_step + weight * ms;
    self->tokens_tokens = self->tokens_tokens * keep_step + weight * tokens * tokens;
    self->tokens_ms = self->tokens_ms * keep_step + weight * tokens * ms;
    double squares = self->weight * self->tokens_tokens;
    double spread = squares - self->tokens * self->tokens;
    if (self->weight < LEAST_SAMPLES * BALANCE_TOKENS /
                           (self->tokens / self->weight + BALANCE_TOKENS)) {
        return;
    }
    double slope = self->weight * self->tokens_ms - self->tokens * self->weighted_ms;
    if (spread <= LEAST_SPREAD * squares || slope <= 0.0) {
        return;
    }
    slope /= spread;
    double fixed_ms = (self->weighted_ms - slope * self->tokens) / self->weight;
    double step_tokens = fixed_ms / slope;
    self->step_tokens = MIN(MAX(0.0, step_tokens), MAX_STEP_TOKENS);
}

static double scatter_variance(const Speeds *self) {
    if (self->scatter_weights == 0.0) {
        return FIRST_VARIANCE;
    }
    double persistence = 0.0;
    if (self->scatter_products > 0.0) {
        double share = self->scatter_products / self->scatter_squares;
        persistence = MIN(share, MOST_PERSISTENCE);
    }
    return self->scatter_squares / self->scatter_weights * (1.0 + persistence) /
           (1.0 - persistence);
}

static void fold_scatter(Speeds *self, Ratio *own, double ms, double tokens, double expected_ms) {
    double error = ms / expected_ms - 1.0;
    error = MIN(error, MOST_ERROR);
    double weight = tokens * tokens;
    self->scatter_weights = self->scatter_weights * keep_scatter + weight;
    self->scatter_squares = self->scatter_squares * keep_scatter + weight * error * error;
    self->scatter_products = self->scatter_products * keep_scatter + weight * error * own->error;
    own->error = error;
}

static double scatter_factor(const Speeds *self, const Ratio *own) {
    double ratio = own->ms / own->tokens / self->fleet_ms_per_token;
    double chance = DEVIATIONS * DEVIATIONS * scatter_variance(self) * own->squares /
                    (own->tokens * own->tokens);
    double distance = (ratio - 1.0) / MAX(ratio, 1.0);
    if (distance * distance <= chance) {
        return 1.0;
    }
    return pow(ratio, 1.0 - chance / (distance * distance));
}

static void age_unseen(Speeds *self) {
    PyObject *name, *one;
    Py_ssize_t place = 0;
    self->since_aged = 0;
    while (PyDict_Next(self->workers, &place, &name, &one)) {
        WorkerSpeed *known = (WorkerSpeed *)one;
        if (!known->seen) {
            ratio_uncertainty(known->prefill, self->fleet_ms_per_token);
        }
        known->seen = 0;
    }
    self->since_compared = COMPARED_EVERY;
}

static void compare_all(Speeds *self) {
    PyObject *name, *one;
    Py_ssize_t place = 0;
    self->compared_to = self->fleet_ms_per_token;
    self->since_compared = 0;
    while (PyDict_Next(self->workers, &place, &name, &one)) {
        Ratio *own = ((WorkerSpeed *)one)->prefill;
        if (own->tokens != 0.0) {
            own->factor = scatter_factor(self, own);
        }
    }
}

static void learn(Speeds *self, WorkerSpeed *known, double ms, double tokens) {
    Ratio *own = known->prefill, *fleet = self->fleet;
    double predicted = own->tokens != 0.0 ? own->ms / own->tokens : self->fleet_ms_per_token;
    fold_scatter(self, own, ms, tokens, predicted * tokens);
    ratio_add(own, ms, tokens, HALF_LIFE_TOKENS);
    ratio_add(fleet, ms, tokens, 4 * HALF_LIFE_TOKENS);
    self->fleet_ms_per_token = fleet->ms / fleet->tokens;
    known->seen = 1;
    self->since_compared++;
    self->since_aged++;
    long long due = AGED_AFTER * (long long)PyDict_GET_SIZE(self->workers);
    if (self->since_aged >= MAX(COMPARED_EVERY, due)) {
        age_unseen(self);
    }
    double drift = fabs(self->fleet_ms_per_token / self->compared_to - 1.0);
    if (drift > DRIFT || self->since_compared >= COMPARED_EVERY) {
        compare_all(self);
        return;
    }
    own->factor = scatter_factor(self, own);
}

static void close_step(Speeds *self, WorkerSpeed *known) {
    double prefilled = known->open_tokens, measured = known->open_ms;
    known->open_tokens = 0.0;
    known->open_ms = 0.0;
    if (known->measured) {
        return;
    }
    double factor = known->prefill->factor, tokens = prefilled + self->steps->step_tokens;
    double believed = self->fleet_ms_per_token * factor * tokens;
    double most = believed * OUTLIER + GRACE_MS;
    step_times_fold(self->steps, prefilled, MIN(measured, most) / factor);
    if (tokens <= MIN_SAMPLE_TOKENS) {
        return;
    }
    double least = MAX(believed / OUTLIER, MIN_MS_PER_TOKEN * tokens);
    double clipped = MAX(measured, least);
    clipped = MIN(clipped, believed * OUTLIER);
    learn(self, known, clipped, tokens);
}

void speeds_first_token(Speeds *self, WorkerSpeed *known, long long uncached_tokens,
                        double service_s, double now) {
    if (known->open_tokens != 0.0 && now - known->open_s > SAME_STEP_S) {
        close_step(self, known);
    }
    if (uncached_tokens > 0) {
        double tokens = (double)uncached_tokens;
        self->uncached_tokens = blend(self->uncached_tokens, tokens, PROMPT_WEIGHT);
        known->open_tokens += tokens;
    }
    known->open_s = now;
    known->open_ms += speeds_milliseconds(service_s);
}

void speeds_output(Speeds *self, WorkerSpeed *known, long long tokens, double elapsed_s) {
    if (tokens < 1) {
        return;
    }
    double sample = speeds_milliseconds(elapsed_s) / (double)tokens;
    known->interval_ms = blend(known->interval_ms, sample, INTERVAL_WEIGHT);
    self->interval_ms = blend(self->interval_ms, sample, INTERVAL_WEIGHT);
}

void speeds_finished(Speeds *self, WorkerSpeed *known, double residence_s,
                     long long output_tokens) {
    double sample = speeds_milliseconds(residence_s);
    known->residence_ms = blend(known->residence_ms, sample, RESIDENCE_WEIGHT);
    self->residence_ms = blend(self->residence_ms, sample, RESIDENCE_WEIGHT);
    if (output_tokens > 0) {
        self->output_tokens = blend(self->output_tokens, (double)output_tokens, RESIDENCE_WEIGHT);
    }
}

/* Return `now - before` of two numbers of which `before` is at most `now`, or is 0. */
static double increase(long long now, long long before) {
    return now < before ? (double)now : (double)((uint64_t)now - (uint64_t)before);
}

void speeds_measured(Speeds *self, WorkerSpeed *known, long long tokens, long long busy_us) {
    if (tokens < known->measured_tokens || busy_us < known->measured_us) {
        known->measured_tokens = known->measured_us = 0;
    }
    double new_tokens = increase(tokens, known->measured_tokens);
    double new_us = increase(busy_us, known->measured_us);
    known->measured = 1;
    if (new_tokens <= MIN_SAMPLE_TOKENS) {
        return;
    }
    known->measured_tokens = tokens;
    known->measured_us = busy_us;
    double weight = MIN(new_tokens, HALF_LIFE_TOKENS);
    double ms_per_token = new_us / 1000.0 / new_tokens;
    learn(self, known, MAX(ms_per_token, MIN_MS_PER_TOKEN) * weight, weight);
}

void speeds_begin(Speeds *self, double prior_ms_per_token) {
    self->fleet->ms = prior_ms_per_token * PRIOR_TOKENS;
    self->fleet->tokens = PRIOR_TOKENS;
    self->fleet->factor = 1.0;
    self->fleet_ms_per_token = self->fleet->ms / self->fleet->tokens;
    self->compared_to = prior_ms_per_token;
}

WorkerSpeed *speeds_worker(Speeds *self, PyObject *name) {
    WorkerSpeed *known = (WorkerSpeed *)PyDict_GetItemWithError(self->workers, name);
    if (known != NULL || PyErr_Occurred()) {
        return known;
    }
    known = (WorkerSpeed *)worker_speed_type.tp_alloc(&worker_speed_type, 0);
    NEED_OR_NULL(known);
    known->beyond = 1.0;
    known->prefill = (Ratio *)ratio_type.tp_alloc(&ratio_type, 0);
    if (known->prefill != NULL) {
        known->prefill->factor = 1.0;
    }
    int failed = known->prefill == NULL ||
                 PyDict_SetItem(self->workers, name, (PyObject *)known) < 0;
    Py_DECREF(known); /* the dict has it */
    return failed ? NULL : known;
}

int speeds_forget(Speeds *self, PyObject *name) {
    WorkerSpeed *known = (WorkerSpeed *)PyDict_GetItemWithError(self->workers, name);
    if (known == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    known->removed = 1;
    self->answering -= known->answers > 0;
    return PyDict_DelItem(self->workers, name);
}
