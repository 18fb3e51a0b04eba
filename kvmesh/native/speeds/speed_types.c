/* Speeds and StepTimes as Python sees them. */
#include "base/shell.h"
#include "speeds/speeds.h"

#define NUMBER(type, name) {#name, T_DOUBLE, offsetof(type, name), 0, NULL}

static void worker_speed_dealloc(WorkerSpeed *self) {
    Py_XDECREF(self->prefill);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject worker_speed_type = {
    INNER_TYPE("WorkerSpeed", WorkerSpeed, worker_speed),
};

static PyMemberDef step_times_members[] = {
    NUMBER(StepTimes, step_tokens),
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject step_times_type = {
    SLOTS("StepTimes", sizeof(StepTimes), Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_members = step_times_members,
};

/* Return whether it is a worker's name; an error is set if not. */
static int is_name(PyObject *worker) {
    if (PyUnicode_Check(worker)) {
        return 1;
    }
    PyErr_Format(PyExc_TypeError, "a worker's name is a str, not %.100s",
                 Py_TYPE(worker)->tp_name);
    return 0;
}

static WorkerSpeed *find(Speeds *self, PyObject *worker) {
    return is_name(worker) ? speeds_worker(self, worker) : NULL;
}

static PyObject *speeds_get_ms_per_token(Speeds *self, PyObject *worker) {
    WorkerSpeed *known = find(self, worker);
    return known == NULL ? NULL : PyFloat_FromDouble(speeds_ms_per_token(self, known));
}

static PyObject *speeds_prefill_ratio(Speeds *self, PyObject *worker) {
    WorkerSpeed *known = find(self, worker);
    return known == NULL ? NULL : Py_NewRef(known->prefill);
}

/* Look up without making; 0 with an error set. */
static int look_up(Speeds *self, PyObject *worker, WorkerSpeed **known) {
    *known = NULL;
    EXPECT(is_name(worker));
    *known = (WorkerSpeed *)PyDict_GetItemWithError(self->workers, worker);
    return *known != NULL || !PyErr_Occurred();
}

static PyObject *speeds_get_ms_per_output_token(Speeds *self, PyObject *worker) {
    WorkerSpeed *known;
    return look_up(self, worker, &known)
               ? PyFloat_FromDouble(speeds_ms_per_output_token(self, known)) : NULL;
}

static PyObject *speeds_get_residence_ms(Speeds *self, PyObject *worker) {
    WorkerSpeed *known;
    return look_up(self, worker, &known)
               ? PyFloat_FromDouble(speeds_residence_ms(self, known)) : NULL;
}

static PyObject *speeds_take_first_token(Speeds *self, NAMED_ARGUMENTS) {
    WorkerSpeed *known;
    PyObject *worker;
    long long tokens;
    double service_s, now;
    TRY_OR_NULL(READ("first_token", "ULdd", "worker uncached_tokens service_s now", &worker,
                     &tokens, &service_s, &now));
    NEED_OR_NULL(known = speeds_worker(self, worker));
    speeds_first_token(self, known, tokens, service_s, now);
    Py_RETURN_NONE;
}

static PyObject *speeds_take_measured(Speeds *self, NAMED_ARGUMENTS) {
    WorkerSpeed *known;
    PyObject *worker;
    long long tokens, busy_us;
    TRY_OR_NULL(READ("measured", "ULL", "worker tokens busy_us", &worker, &tokens, &busy_us));
    NEED_OR_NULL(known = speeds_worker(self, worker));
    speeds_measured(self, known, tokens, busy_us);
    Py_RETURN_NONE;
}

static PyObject *speeds_take_output(Speeds *self, NAMED_ARGUMENTS) {
    PyObject *worker;
    long long tokens;
    double elapsed_s;
    TRY_OR_NULL(READ("output", "ULd", "worker tokens elapsed_s", &worker, &tokens, &elapsed_s));
    WorkerSpeed *known = tokens < 1 ? NULL : speeds_worker(self, worker);
    TRY_OR_NULL(no_error());
    speeds_output(self, known, tokens, elapsed_s);
    Py_RETURN_NONE;
}

static PyObject *speeds_take_finished(Speeds *self, NAMED_ARGUMENTS) {
    WorkerSpeed *known;
    PyObject *worker;
    double residence_s;
    long long tokens;
    TRY_OR_NULL(READ("finished", "UdL", "worker residence_s output_tokens", &worker, &residence_s,
                     &tokens));
    NEED_OR_NULL(known = speeds_worker(self, worker));
    speeds_finished(self, known, residence_s, tokens);
    Py_RETURN_NONE;
}

static PyObject *speeds_take_answered(Speeds *self, NAMED_ARGUMENTS) {
    WorkerSpeed *known;
    PyObject *worker;
    long long tokens;
    double elapsed_s;
    TRY_OR_NULL(READ("answered", "ULd", "worker tokens elapsed_s", &worker, &tokens, &elapsed_s));
    NEED_OR_NULL(known = speeds_worker(self, worker));
    speeds_answered(self, known, tokens, elapsed_s);
    Py_RETURN_NONE;
}

static PyObject *speeds_get_answer_tokens(Speeds *self, PyObject *expected) {
    long long tokens = PyLong_AsLongLong(expected);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(speeds_answer_tokens(self, tokens));
}

static PyObject *speeds_remove(Speeds *self, PyObject *worker) {
    if (!is_name(worker) || speeds_forget(self, worker) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMemberDef speeds_members[] = {
    {"steps", T_OBJECT_EX, offsetof(Speeds, steps), READONLY, NULL},
    NUMBER(Speeds, fleet_ms_per_token),
    NUMBER(Speeds, uncached_tokens),
    NUMBER(Speeds, output_tokens),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef speeds_methods[] = {
    METHOD_O("ms_per_token", speeds_get_ms_per_token),
    METHOD_O("prefill_ratio", speeds_prefill_ratio),
    METHOD_O("ms_per_output_token", speeds_get_ms_per_output_token),
    METHOD_O("residence_ms", speeds_get_residence_ms),
    METHOD_O("answer_tokens", speeds_get_answer_tokens),
    METHOD_O("remove_worker", speeds_remove),
    METHOD_KEYWORDS("first_token", speeds_take_first_token),
    METHOD_KEYWORDS("measured", speeds_take_measured),
    METHOD_KEYWORDS("output", speeds_take_output),
    METHOD_KEYWORDS("answered", speeds_take_answered),
    METHOD_KEYWORDS("finished", speeds_take_finished),
    {NULL, NULL, 0, NULL},
};

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
    if (self->workers == NULL || self->steps == NULL || self->fleet == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    speeds_begin(self, prior);
    return (PyObject *)self;
}

static void speeds_dealloc(Speeds *self) {
    XDECREF_ALL(self->workers, self->steps, self->fleet);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject speeds_type = {
    TYPE("Speeds", Speeds, speeds),
    .tp_members = speeds_members,
    .tp_methods = speeds_methods,
};
