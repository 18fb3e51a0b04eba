/* How long an output token takes at each worker: tests/reference/workers/relative_speed.py, where the reasons stand,
 * operation by operation.
 */
#include "speeds/speeds.h"

#include <stdlib.h>

#define EXPLAINED 3.0
#define BURST_MS 0.5
#define TYPICAL 2
#define AGED_EVERY 64
#define AGED_AFTER 4
#define COMPARED_SHARE 4
#define MEAN_WEIGHT 0.05

/* Write the times per token, the least first. */
static void rates_of(const WorkerSpeed *known, double step_tokens, double *rates) {
    for (int i = 0; i < KEPT_ANSWERS; i++) {
        double rate = known->answer_ms[i] / (known->answer_tokens[i] + step_tokens);
        int place = i;
        for (; place > 0 && rates[place - 1] > rate; place--) {
            rates[place] = rates[place - 1];
        }
        rates[place] = rate;
    }
}

static void add(WorkerSpeed *known, double tokens, double ms) {
    int last = (int)(known->answers % KEPT_ANSWERS);
    for (int i = 0; i < KEPT_ANSWERS; i++) {
        if (known->answers_aged || i == last) {
            known->answer_tokens[i] = tokens;
            known->answer_ms[i] = ms;
        }
    }
    known->answers++;
    known->answers_aged = 0;
    known->answers_seen = 1;
}

static void compare(const Speeds *self, WorkerSpeed *known) {
    double rates[KEPT_ANSWERS];
    if (known->answers < KEPT_ANSWERS) {
        return;
    }
    rates_of(known, self->answers.step_tokens, rates);
    double over = rates[0] - EXPLAINED * self->usual_ms;
    int slow = self->usual_ms > 0.0 && over > 0.0;
    known->prefill->slow_ms = slow ? over : 0.0;
    known->beyond = slow ? rates[TYPICAL] / self->usual_ms : 1.0;
}

static int by_size(const void *one, const void *two) {
    double a = *(const double *)one, b = *(const double *)two;
    return (a > b) - (a < b);
}

static void compare_all(Speeds *self) {
    PyObject *name, *one;
    Py_ssize_t place = 0, count = 0, workers = PyDict_GET_SIZE(self->workers);
    double *typical = PyMem_RawMalloc((size_t)(workers + 1) * sizeof *typical);
    self->since_answers_compared = 0;
    if (typical == NULL) {
        return; /* what was usual before is as good */
    }
    while (PyDict_Next(self->workers, &place, &name, &one)) {
        double rates[KEPT_ANSWERS];
        if (((WorkerSpeed *)one)->answers >= KEPT_ANSWERS) {
            rates_of((WorkerSpeed *)one, self->answers.step_tokens, rates);
            typical[count++] = rates[TYPICAL];
        }
    }
    qsort(typical, (size_t)count, sizeof *typical, by_size);
    self->usual_ms = count ? typical[(count - 1) / 2] : 0.0;
    PyMem_RawFree(typical);
    for (place = 0; PyDict_Next(self->workers, &place, &name, &one);) {
        compare(self, (WorkerSpeed *)one);
    }
}

static void distrust(const Speeds *self, WorkerSpeed *known) {
    for (int i = 0; i < KEPT_ANSWERS; i++) {
        double usual_ms = self->usual_ms * (known->answer_tokens[i] + self->answers.step_tokens);
        known->answer_ms[i] = 0.5 * (known->answer_ms[i] + usual_ms);
    }
    known->answers_aged = 1;
}

static void age_all(Speeds *self) {
    PyObject *name, *one;
    Py_ssize_t place = 0;
    self->since_answers_aged = 0;
    while (PyDict_Next(self->workers, &place, &name, &one)) {
        WorkerSpeed *known = (WorkerSpeed *)one;
        if (!known->answers_seen && known->answers >= KEPT_ANSWERS) {
            distrust(self, known);
        }
        known->answers_seen = 0;
    }
    self->since_answers_compared = self->answering;
}

void speeds_answered(Speeds *self, WorkerSpeed *known, long long tokens, double elapsed_s) {
    double ms = speeds_milliseconds(elapsed_s);
    if (tokens < 1 || ms < BURST_MS * (double)tokens) {
        return;
    }
    self->answering += known->answers == 0;
    add(known, (double)tokens, ms);
    double weight = self->mean_answer != 0.0 ? MEAN_WEIGHT : 1.0;
    self->mean_answer += weight * ((double)tokens - self->mean_answer);
    step_times_fold(&self->answers, (double)tokens, ms / known->beyond);
    self->since_answers_compared++;
    self->since_answers_aged++;
    long long due = AGED_AFTER * self->answering;
    if (self->since_answers_aged >= (due > AGED_EVERY ? due : AGED_EVERY)) {
        age_all(self);
    }
    if (COMPARED_SHARE * self->since_answers_compared >= self->answering) {
        compare_all(self);
    } else {
        compare(self, known);
    }
}
