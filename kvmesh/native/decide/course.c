/* Course: a mode, a formula and its weights, by which requests are decided. */
#include "base/shell.h"
#include "decide/decide.h"

#include <string.h>

static const char *const modes[MODES] = {
    [MODE_KV] = "kv",
    [MODE_ROUND_ROBIN] = "round-robin",
    [MODE_RANDOM] = "random",
    [MODE_LEAST_LOADED] = "least-loaded",
    [MODE_POWER_OF_TWO] = "power-of-two",
};

static int find_mode(PyObject *name) {
    int mode = 0;
    while (mode < MODES && PyUnicode_CompareWithASCIIString(name, modes[mode]) != 0) {
        mode++;
    }
    return mode < MODES ? mode : -1;
}

TRAVERSE(Course, course, formula, policy, maker, draw, price)

static int course_clear(Course *self) {
    CLEAR_ALL(self->formula, self->policy, self->maker, self->draw, self->price);
    return 0;
}

static void course_dealloc(Course *self) {
    PyObject_GC_UnTrack(self);
    course_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Course(mode, looks, formula, weights, margin, policy, maker, draw); `formula` is a Formula, or takes
 * the terms of all and returns their costs
 */
static PyObject *course_new(NEW_ARGUMENTS) {
    int uses_caches;
    PyObject *name, *formula, *weights, *policy, *maker, *draw;
    double margin, read[MOST_WEIGHTS] = {0.0};
    TRY_OR_NULL(READ_NEW("Course", "UpOTdUOO",
                         "mode uses_caches formula weights margin policy maker draw", &name,
                         &uses_caches, &formula, &weights, &margin, &policy, &maker, &draw));
    int mode = find_mode(name), compiled = Py_IS_TYPE(formula, &formula_type);
    REFUSE_OR_NULL(!compiled && !PyCallable_Check(formula), PyExc_TypeError,
                   "a formula is a Formula or a function, not %.100s", Py_TYPE(formula)->tp_name);
    Py_ssize_t count = PyTuple_GET_SIZE(weights);
    REFUSE_OR_NULL(mode < 0 || count > MOST_WEIGHTS || (compiled && count <
                                                        ((Formula *)formula)->weights),
                   PyExc_ValueError, "mode %.40U with %zd weights cannot be followed", name, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        read[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(weights, i));
        TRY_OR_NULL(no_error());
    }
    Course *self = (Course *)type->tp_alloc(type, 0);
    if (self != NULL) {
        memcpy(self->weights, read, sizeof read);
        self->weights_count = count;
        self->margin = margin;
        self->mode = mode;
        self->uses_caches = uses_caches || mode == MODE_KV;
        self->formula = compiled ? (Formula *)Py_NewRef(formula) : NULL;
        self->price = compiled ? NULL : Py_NewRef(formula);
        self->policy = Py_NewRef(policy);
        self->maker = Py_NewRef(maker);
        self->draw = Py_NewRef(draw);
    }
    return (PyObject *)self;
}

MEMBERS(course_members, FIELDS(Course, T_INT, READONLY, uses_caches))

PyTypeObject course_type = {
    GC_TYPE("Course", Course, course),
    .tp_clear = (inquiry)course_clear,
    .tp_members = course_members,
};
