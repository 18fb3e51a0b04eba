/* Reads a cost formula's program: everything is checked here, so that it can be run without. */
#include "decide/costs.h"

#include <string.h>

typedef struct {
    const char *names[KEPT];
    int count;
} Kept;

static int find_place(const char *name, const char *const *names, int count) {
    int place = 0;
    while (place < count && strcmp(name, names[place]) != 0) {
        place++;
    }
    return place < count ? place : -1;
}

/* Return what a name stands for; its operation is 0 if that is nothing. */
static Step named_step(const char *name, const Kept *kept) {
    int place;
    if (strlen(name) == 1 && strchr("+-*/", name[0]) != NULL) {
        return (Step){.operation = name[0]};
    }
    if (strcmp(name, "max") == 0 || strcmp(name, "min") == 0) {
        return (Step){.operation = name[1] == 'a' ? 'M' : 'm'};
    }
    if ((place = find_place(name, kept->names, kept->count)) >= 0) {
        return (Step){.operation = 'k', .place = place};
    }
    if ((place = find_place(name, facts, FACTS)) >= 0) {
        return (Step){.operation = 'f', .place = place};
    }
    for (place = 0; place < TERMS; place++) {
        if (strcmp(name, terms[place].name) == 0) {
            return (Step){.operation = 't', .place = place};
        }
    }
    return (Step){.operation = 0};
}

/* Read one step: a float, the place of a weight, or a name as `named_step` knows it. */
static int read_step(PyObject *from, Kept *kept, Step *step) {
    if (PyFloat_Check(from)) {
        *step = (Step){.operation = 'n', .number = PyFloat_AS_DOUBLE(from)};
        return 0;
    }
    if (PyLong_Check(from)) {
        long place = PyLong_AsLong(from);
        REFUSE(place < 0 || place >= MOST_WEIGHTS, PyExc_ValueError, "there is no weight %R", from);
        *step = (Step){.operation = 'w', .place = (int)place};
        return 0;
    }
    const char *name = PyUnicode_AsUTF8(from);
    NEED(name);
    if (name[0] == '=' && kept->count < KEPT) {
        *step = (Step){.operation = '=', .place = kept->count};
        kept->names[kept->count++] = name + 1;
        return 0;
    }
    *step = named_step(name, kept);
    REFUSE(!step->operation, PyExc_ValueError, "the compiled core has no term %R", from);
    return 0;
}

/* Return how many more numbers there are after a step. */
static int growth(const Step *step) {
    return step->operation == '=' ? 0 : strchr("tfwnk", step->operation) != NULL ? 1 : -1;
}

int read_program(Formula *self, PyObject *from, Program *program) {
    int depth = 0;
    Kept kept = {.count = 0};
    program->count = PyTuple_GET_SIZE(from);
    program->steps = PyMem_Calloc((size_t)program->count + 1, sizeof *program->steps);
    NEED_MEMORY(program->steps);
    for (Py_ssize_t i = 0; i < program->count; i++) {
        Step *step = program->steps + i;
        TRY(read_step(PyTuple_GET_ITEM(from, i), &kept, step));
        if (step->operation == 'w' && step->place >= self->weights) {
            self->weights = step->place + 1;
        }
        depth += growth(step);
        REFUSE(depth < 1 || depth > DEPTH, PyExc_ValueError,
               "a formula holds 1 to %d numbers at a time", DEPTH);
    }
    REFUSE(depth != 1, PyExc_ValueError, "a formula leaves one number, not %d", depth);
    return 0;
}
