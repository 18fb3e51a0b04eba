/* Totals: exact sums of what became of requests, by second and since the start. */
#include "base/arrays.h"
#include "base/shell.h"
#include "insight/totals.h"

#include <math.h>

#define LEAST_MS 0.01
#define MOST_MS 1e12

enum { CLIENT_ERROR = 400, SERVER_ERROR = 500 };

static int sketch_add(Sketch *sketch, double ms) {
    double bounded = ms > LEAST_MS ? ms : LEAST_MS;
    int32_t number = (int32_t)ceil(log(bounded < MOST_MS ? bounded : MOST_MS) / log(GAMMA));
    Py_ssize_t low = 0, high = sketch->count;
    BISECT(low, high, sketch->bins[middle].number < number);
    if (low < sketch->count && sketch->bins[low].number == number) {
        sketch->bins[low].count++;
        return 0;
    }
    TRY(GROW(sketch->bins, sketch->count, sketch->room, 8));
    memmove(sketch->bins + low + 1, sketch->bins + low,
            (size_t)(sketch->count - low) * sizeof *sketch->bins);
    sketch->bins[low] = (SketchBin){number, 1};
    sketch->count++;
    return 0;
}

static void forget_seconds(Totals *self, Py_ssize_t first) {
    for (Py_ssize_t i = 0; i < first; i++) {
        PyMem_Free(self->seconds[i].ttft.bins);
        PyMem_Free(self->seconds[i].round_robin_ttft.bins);
    }
    self->count -= first;
    if (first == 0 || self->count == 0) {
        return;
    }
    memmove(self->seconds, self->seconds + first, (size_t)self->count * sizeof *self->seconds);
}

/* Find the second of a time, made if absent; -1 with an error set. */
static int second_at(Totals *self, double now, Second **found) {
    REFUSE(!(fabs(now) < 1e15), PyExc_ValueError, "a time is a finite number of seconds");
    long long second = (long long)now;
    Py_ssize_t place = self->count;
    while (place > 0 && self->seconds[place - 1].second > second) {
        place--;
    }
    if (place > 0 && self->seconds[place - 1].second == second) {
        *found = &self->seconds[place - 1];
        return 0;
    }
    TRY(GROW(self->seconds, self->count, self->room, 16));
    memmove(self->seconds + place + 1, self->seconds + place,
            (size_t)(self->count - place) * sizeof *self->seconds);
    self->seconds[place] = (Second){.second = second};
    self->count++;
    Py_ssize_t old = 0;
    while (self->seconds[old].second <= second - self->kept_s) {
        old++;
    }
    forget_seconds(self, old);
    *found = &self->seconds[place - old];
    return 0;
}

static int count_one(Totals *self, double now, int what) {
    Second *second;
    TRY(second_at(self, now, &second));
    second->counts[what]++;
    return 0;
}

int totals_decided(Totals *self, double now) {
    return count_one(self, now, REQUESTS);
}

static void count_whole(Totals *self, const Record *record) {
    double duration = record->ended_s - record->decided_s;
    double duration_s = duration > 0.0 ? duration : 0.0;
    long long size = record->block_size, overlap = record->chosen.overlap_blocks;
    long long best = record->best_overlap_blocks > overlap ? record->best_overlap_blocks : overlap;
    long long told = record->has_usage ? record->usage_completion : 0;
    long long output = told > 0 ? told : record->output_tokens;
    long long asked = record->has_usage ? record->usage_prompt : record->prompt_tokens;
    histogram_observe(self->duration_s, duration_s);
    histogram_observe(self->prompt_sizes, (double)asked);
    histogram_observe(self->output_sizes, (double)output);
    self->prompt_tokens += record->prompt_tokens;
    self->output_tokens += output;
    self->predicted_tokens += overlap * size;
    self->best_tokens += best * size;
    if (isnan(record->first_token_s)) {
        return;
    }
    double ttft_s = record_ttft_ms(record) / 1000.0;
    histogram_observe(self->ttft_s, ttft_s);
    if (output > 1) {
        double rest = duration_s - ttft_s;
        histogram_observe(self->itl_s, (rest > 0.0 ? rest : 0.0) / (double)(output - 1));
    }
}

/* Count what caches saved of an answer's prompt: by its engine's word, else as it was predicted. These
 * sums are what every page, metric and log line of the benefit shows.
 */
static void count_saved(TokenCounts *tokens, long long *counts, const Record *record, int told) {
    long long predicted = record->chosen.overlap_blocks * record->block_size;
    long long prompt = told ? record->usage_prompt : record->prompt_tokens;
    long long saved = told ? record->usage_cached : predicted < prompt ? predicted : prompt;
    double saved_ms = (double)saved * record->chosen.ms_per_token;
    if (told) {
        tokens->reported += prompt;
        tokens->predicted += predicted;
        tokens->cached += saved;
        counts[REPORTED_TOKENS] += prompt;
        counts[CACHED_TOKENS] += saved;
    }
    tokens->prompt += prompt;
    tokens->saved += saved;
    tokens->saved_s += saved_ms / 1000.0;
    counts[ANSWERED_TOKENS] += prompt;
    counts[SAVED_TOKENS] += saved;
    counts[SAVED_US] += llround(saved_ms < MOST_MS ? saved_ms * 1000.0 : MOST_MS);
}

int totals_ended(Totals *self, TokenCounts *tokens, const Record *record, int told) {
    long long prompt = record->prompt_tokens;
    Second *second;
    if (record->state == FINISHED) {
        count_whole(self, record);
    }
    TRY(second_at(self, record->ended_s, &second));
    long long *counts = second->counts;
    if (record->state == FAILED || record->state == CUT || record->status >= SERVER_ERROR) {
        counts[FAILED_REQUESTS]++;
    } else if (record->state == FINISHED) {
        counts[FINISHED_REQUESTS]++;
    }
    if (record->state == FINISHED) {
        counts[PROMPT_TOKENS_SUM] += prompt;
        counts[OVERRIDDEN] += record->overridden;
        if (record->by_cache) {
            counts[FORESEEN_TOKENS] += prompt;
            counts[PREDICTED_TOKENS] += record->chosen.overlap_blocks * record->block_size;
        }
        if (record->status < CLIENT_ERROR) {
            count_saved(tokens, counts, record, told);
        }
    }
    return isnan(record->first_token_s) ? 0 : sketch_add(&second->ttft, record_ttft_ms(record));
}

/* Count what is known of an ended request once its shadow is. -1 with an error set. */
static int totals_compared(Totals *self, const Record *record) {
    Second *second;
    long long robin = record->round_robin_blocks, size = record->block_size;
    int told = record->has_usage && record->usage_cached != UNKNOWN;
    if (robin == UNKNOWN) {
        return 0;
    }
    TRY(second_at(self, record->ended_s, &second));
    long long *counts = second->counts, predicted = record->chosen.overlap_blocks * size;
    if (record->state == FINISHED) {
        counts[SHADOWED_TOKENS] += record->prompt_tokens;
        counts[ROUND_ROBIN_TOKENS] += robin * size;
        if (told && !record->overridden && record->by_cache) {
            counts[OWN_REQUESTS]++;
            counts[OWN_PROMPT_TOKENS] += record->prompt_tokens;
            counts[OWN_PREDICTED_TOKENS] += predicted;
            counts[OWN_ROUND_ROBIN_TOKENS] += robin * size;
            counts[OWN_REPORTED_TOKENS] += record->usage_prompt;
            counts[OWN_CACHED_TOKENS] += record->usage_cached;
        }
    }
    if (isnan(record->first_token_s) || !(told || record->by_cache)) {
        return 0;
    }
    long long lost = (told ? record->usage_cached : predicted) - robin * size;
    return sketch_add(&second->round_robin_ttft,
                      record_ttft_ms(record) + (double)lost * record->chosen.ms_per_token);
}

static PyObject *refused_method(Totals *self, PyObject *given) {
    double now;
    int failed = read_double(given, &now) < 0 || count_one(self, now, REFUSED_REQUESTS) < 0;
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *compared_method(Totals *self, PyObject *given) {
    REFUSE_OR_NULL(!Py_IS_TYPE(given, &record_type), PyExc_TypeError,
                   "totals count records, not %.80s", Py_TYPE(given)->tp_name);
    return totals_compared(self, (const Record *)given) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *sketch_dict(const Sketch *sketch) {
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict != NULL && i < sketch->count; i++) {
        if (dict_add(dict, PyLong_FromLong(sketch->bins[i].number),
                     PyLong_FromUnsignedLong(sketch->bins[i].count)) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

/* The fields of core.insight.traffic.TrafficSecond in their order. */
static PyObject *second_tuple(const Second *second) {
    PyObject *fields = PyTuple_New(SECOND_COUNTS + 3);
    NEED_OR_NULL(fields);
    PyTuple_SET_ITEM(fields, 0, PyLong_FromLongLong(second->second));
    for (int i = 0; i < SECOND_COUNTS; i++) {
        PyTuple_SET_ITEM(fields, i + 1, PyLong_FromLongLong(second->counts[i]));
    }
    PyTuple_SET_ITEM(fields, SECOND_COUNTS + 1, sketch_dict(&second->ttft));
    PyTuple_SET_ITEM(fields, SECOND_COUNTS + 2, sketch_dict(&second->round_robin_ttft));
    for (int i = 0; i < SECOND_COUNTS + 3; i++) {
        if (PyTuple_GET_ITEM(fields, i) == NULL) {
            Py_DECREF(fields);
            return NULL;
        }
    }
    return fields;
}

static PyObject *since_method(Totals *self, PyObject *given) {
    long long first = PyLong_AsLongLong(given);
    RETURN_IF(first == -1 && PyErr_Occurred(), NULL);
    PyObject *rows = PyList_New(0);
    for (Py_ssize_t i = 0; rows != NULL && i < self->count; i++) {
        if (self->seconds[i].second >= first) {
            PyObject *row = second_tuple(&self->seconds[i]);
            append_made(&rows, row);
        }
    }
    return rows;
}

static PyObject *totals_new(NEW_ARGUMENTS) {
    PyObject *times, *sizes;
    Py_ssize_t kept_s;
    TRY_OR_NULL(READ_NEW("Totals", "nOO", "kept_s times sizes", &kept_s, &times, &sizes));
    Totals *self = (Totals *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    Histogram **places[] = {&self->ttft_s, &self->itl_s, &self->duration_s, &self->prompt_sizes,
                            &self->output_sizes};
    self->kept_s = kept_s > 1 ? kept_s : 1;
    for (int i = 0; i < 5; i++) {
        PyObject *bounds = i < 3 ? times : sizes;
        *places[i] = (Histogram *)PyObject_CallOneArg((PyObject *)&histogram_type, bounds);
        if (*places[i] == NULL) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void totals_dealloc(Totals *self) {
    forget_seconds(self, self->count);
    PyMem_Free(self->seconds);
    XDECREF_ALL(self->ttft_s, self->itl_s, self->duration_s, self->prompt_sizes,
                self->output_sizes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

MEMBERS(members,
    FIELDS(Totals, T_OBJECT_EX, READONLY, ttft_s, itl_s, duration_s, prompt_sizes,
           output_sizes)
    FIELDS(Totals, T_LONGLONG, READONLY, prompt_tokens, output_tokens, best_tokens,
           predicted_tokens))

METHODS(methods,
    METHOD_O("refused", refused_method),
    METHOD_O("compared", compared_method),
    METHOD_O("rows", since_method))

PyTypeObject totals_type = {
    TYPE("Totals", Totals, totals),
    .tp_members = members, .tp_methods = methods,
};
