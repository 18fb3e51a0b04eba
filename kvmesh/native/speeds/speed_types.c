/* Speeds and StepTimes as Python sees them. */
#include "base/shell.h"
#include "speeds/speeds.h"

DEALLOC(WorkerSpeed, worker_speed, prefill)

PyTypeObject worker_speed_type = {
    INNER_TYPE("WorkerSpeed", WorkerSpeed, worker_speed),
};

MEMBERS(step_times_members, FIELDS(StepTimes, T_DOUBLE, 0, step_tokens))

PyTypeObject step_times_type = {
    SLOTS("StepTimes", sizeof(StepTimes), Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_members = step_times_members,
};

/* Return what is known of a worker, made if absent or not, borrowed; NULL if nothing, or with an error. */
static WorkerSpeed *find(Speeds *self, PyObject *worker, int make) {
    REFUSE_OR_NULL(!PyUnicode_Check(worker), PyExc_TypeError, "a worker's name is a str, not %.100s",
                   Py_TYPE(worker)->tp_name);
    return make ? speeds_worker(self, worker)
                : (WorkerSpeed *)PyDict_GetItemWithError(self->workers, worker);
}

static PyObject *float_or_null(double number) {
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(number);
}

static PyObject *speeds_get_ms_per_token(Speeds *self, PyObject *worker) {
    WorkerSpeed *known = find(self, worker, 1);
    return known == NULL ? NULL : PyFloat_FromDouble(speeds_ms_per_token(self, known));
}

static PyObject *speeds_prefill_ratio(Speeds *self, PyObject *worker) {
    WorkerSpeed *known = find(self, worker, 1);
    return known == NULL ? NULL : Py_NewRef(known->prefill);
}

static PyObject *speeds_get_ms_per_output_token(Speeds *self, PyObject *worker) {
    return float_or_null(speeds_ms_per_output_token(self, find(self, worker, 0)));
}

static PyObject *speeds_get_residence_ms(Speeds *self, PyObject *worker) {
    return float_or_null(speeds_residence_ms(self, find(self, worker, 0)));
}

/* A method that learns of a worker from some of these numbers, which are read as `types`. */
#define LEARNS(name, types, names, given, ...) \
    static PyObject *take_##name(Speeds *self, NAMED_ARGUMENTS) { \
        PyObject *worker; \
        long long tokens = 0, busy_us = 0; \
        double seconds = 0.0, now = 0.0; \
        (void)busy_us, (void)seconds, (void)now; \
        TRY_OR_NULL(READ(#name, "U" types, "worker " names, &worker, __VA_ARGS__)); \
        WorkerSpeed *known = speeds_worker(self, worker); \
        NEED_OR_NULL(known); \
        speeds_##name given; \
        Py_RETURN_NONE; \
    }
LEARNS(first_token, "Ldd", "uncached_tokens service_s now", (self, known, tokens, seconds, now),
       &tokens, &seconds, &now)
LEARNS(measured, "LL", "tokens busy_us", (self, known, tokens, busy_us), &tokens, &busy_us)
LEARNS(answered, "Ld", "tokens elapsed_s", (self, known, tokens, seconds), &tokens, &seconds)
LEARNS(finished, "dL", "residence_s output_tokens", (self, known, seconds, tokens), &seconds, &tokens)

static PyObject *take_output(Speeds *self, NAMED_ARGUMENTS) {
    PyObject *worker;
    long long tokens;
    double elapsed_s;
    TRY_OR_NULL(READ("output", "ULd", "worker tokens elapsed_s", &worker, &tokens, &elapsed_s));
    WorkerSpeed *known = tokens < 1 ? NULL : speeds_worker(self, worker);
    TRY_OR_NULL(no_error());
    speeds_output(self, known, tokens, elapsed_s);
    Py_RETURN_NONE;
}

static PyObject *speeds_get_answer_tokens(Speeds *self, PyObject *expected) {
    return float_or_null(speeds_answer_tokens(self, PyLong_AsLongLong(expected)));
}

static PyObject *speeds_remove(Speeds *self, PyObject *worker) {
    find(self, worker, 0);
    return none_or_null(PyErr_Occurred() ? -1 : speeds_forget(self, worker));
}

MEMBERS(speeds_members,
    FIELDS(Speeds, T_OBJECT_EX, READONLY, steps)
    FIELDS(Speeds, T_DOUBLE, 0, fleet_ms_per_token, uncached_tokens, output_tokens))

METHODS(speeds_methods,
    METHOD_O("ms_per_token", speeds_get_ms_per_token),
    METHOD_O("prefill_ratio", speeds_prefill_ratio),
    METHOD_O("ms_per_output_token", speeds_get_ms_per_output_token),
    METHOD_O("residence_ms", speeds_get_residence_ms),
    METHOD_O("answer_tokens", speeds_get_answer_tokens),
    METHOD_O("remove_worker", speeds_remove),
    METHOD_KEYWORDS("first_token", take_first_token),
    METHOD_KEYWORDS("measured", take_measured),
    METHOD_KEYWORDS("output", take_output),
    METHOD_KEYWORDS("answered", take_answered),
    METHOD_KEYWORDS("finished", take_finished))

static PyObject *speeds_new(NEW_ARGUMENTS) {
    double prior;
    TRY_OR_NULL(READ_NEW("Speeds", "d", "prior_ms_per_token", &prior));
    if (!(prior > 0.0 && prior < HUGE_VAL)) {
        PyObject *given = PyFloat_FromDouble(prior);
        PyErr_Format(PyExc_ValueError, "prior_ms_per_token is %R, it must be above 0", given);
        Py_XDECREF(given);
        return NULL;
    }
    Speeds *self = (Speeds *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->workers = PyDict_New();
    self->steps = (StepTimes *)step_times_type.tp_alloc(&step_times_type, 0);
    self->fleet = (Ratio *)ratio_type.tp_alloc(&ratio_type, 0);
    if (!PyErr_Occurred()) {
        speeds_begin(self, prior);
    }
    return made_or_null(self);
}

DEALLOC(Speeds, speeds, workers, steps, fleet)

PyTypeObject speeds_type = {
    TYPE("Speeds", Speeds, speeds),
    .tp_members = speeds_members, .tp_methods = speeds_methods,
};
