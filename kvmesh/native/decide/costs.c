/* What a request costs at each of many workers: runs the program of any core.cost.expression.Expression
 * over columns of numbers, one of each term, to the same last bit as its function in Python, hence no
 * fused multiply and add. No formula is written in C.
 */
#include "base/shell.h"
#include "decide/costs.h"

#include <string.h>

typedef struct {
    double number;
    const double *column; /* NULL: `number` for every worker */
} Value;

/* Python's max and min keep the first of equals. */
#define SUM(a, b) ((a) + (b))
#define DIFFERENCE(a, b) ((a) - (b))
#define PRODUCT(a, b) ((a) * (b))
#define QUOTIENT(a, b) ((a) / (b))
#define LARGER(a, b) ((b) > (a) ? (b) : (a))
#define SMALLER(a, b) ((b) < (a) ? (b) : (a))

#define APPLY(operation)                                                                          \
    if (left.column == NULL && right.column == NULL) {                                            \
        number = operation(left.number, right.number);                                            \
    } else if (right.column == NULL) {                                                            \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            to[i] = operation(left.column[i], right.number);                                      \
        }                                                                                         \
    } else if (left.column == NULL) {                                                             \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            to[i] = operation(left.number, right.column[i]);                                      \
        }                                                                                         \
    } else {                                                                                      \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            to[i] = operation(left.column[i], right.column[i]);                                   \
        }                                                                                         \
    }                                                                                             \
    break;

static int has_zero(Value value, Py_ssize_t count) {
    int zeros = value.column == NULL && value.number == 0.0;
    for (Py_ssize_t i = 0; value.column != NULL && i < count; i++) {
        zeros |= value.column[i] == 0.0;
    }
    return zeros;
}

/* Join two values of `count` workers; a column of them is written to `to`, which may hold `left`. */
static int join(char operation, Value left, Value right, Py_ssize_t count, double *to,
                Value *joined) {
    double number = 0.0;
    switch (operation) {
    case '+':
        APPLY(SUM)
    case '-':
        APPLY(DIFFERENCE)
    case '*':
        APPLY(PRODUCT)
    case 'M':
        APPLY(LARGER)
    case 'm':
        APPLY(SMALLER)
    default:
        REFUSE(has_zero(right, count), PyExc_ZeroDivisionError, "a cost formula divides by zero");
        APPLY(QUOTIENT)
    }
    int single = left.column == NULL && right.column == NULL;
    *joined = (Value){number, single ? NULL : to};
    return 0;
}

/* What a run of a program holds of a chunk of workers. */
typedef struct {
    double terms[TERMS][CHUNK], kept[KEPT][CHUNK], stack[DEPTH][CHUNK];
    Value found[KEPT];
    uint32_t filled; /* bits of terms */
} Bench;

static Value constant(const Step *step, const Asked *asked, const Value *found) {
    switch (step->operation) {
    case 'f':
        return (Value){asked->facts[step->place], NULL};
    case 'w':
        return (Value){asked->weights[step->place], NULL};
    case 'k':
        return found[step->place];
    default:
        return (Value){step->number, NULL};
    }
}

static Value keep(Bench *bench, int place, Value value, Py_ssize_t count) {
    if (value.column != NULL) {
        memcpy(bench->kept[place], value.column, (size_t)count * sizeof *value.column);
        value.column = bench->kept[place];
    }
    return bench->found[place] = value;
}

/* Write what a program gives `count` workers, at most a chunk of them. */
static int run(const Program *program, const Asked *asked, WorkerState *const *states,
               Py_ssize_t count, double *costs) {
    Bench bench;
    Value stack[DEPTH];
    int depth = 0;
    bench.filled = 0;
    for (const Step *step = program->steps; step < program->steps + program->count; step++) {
        switch (step->operation) {
        case 't':
            if (!(bench.filled >> step->place & 1) &&
                terms[step->place].fill(asked, states, count, bench.terms[step->place]) < 0) {
                return -1;
            }
            bench.filled |= UINT32_C(1) << step->place;
            stack[depth++] = (Value){0.0, bench.terms[step->place]};
            break;
        case 'f':
        case 'w':
        case 'n':
        case 'k':
            stack[depth++] = constant(step, asked, bench.found);
            break;
        case '=':
            stack[depth - 1] = keep(&bench, step->place, stack[depth - 1], count);
            break;
        default:
            depth--;
            TRY(join(step->operation, stack[depth - 1], stack[depth], count, bench.stack[depth - 1],
                     &stack[depth - 1]));
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        costs[i] = stack[0].column == NULL ? stack[0].number : stack[0].column[i];
    }
    return 0;
}

static int price_chunk(const Formula *self, const Asked *asked, WorkerState *const *states,
                       Py_ssize_t count, double *costs) {
    double more[CHUNK];
    int fails = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        REFUSE(!Py_IS_TYPE(states[i], &worker_state_type), PyExc_TypeError,
               "a WorkerState, not %.100s", Py_TYPE(states[i])->tp_name);
        fails |= states[i]->failure_share != 0.0;
    }
    if (run(&self->price, asked, states, count, costs) < 0 ||
        (fails && run(&self->failure, asked, states, count, more) < 0)) {
        return -1;
    }
    for (Py_ssize_t i = 0; fails && i < count; i++) {
        costs[i] = states[i]->failure_share != 0.0 ? costs[i] + more[i] : costs[i];
    }
    return 0;
}

int formula_costs(const Formula *self, const Asked *asked, WorkerState *const *states,
                  Py_ssize_t count, double *costs) {
    for (Py_ssize_t done = 0; done < count; done += CHUNK) {
        Py_ssize_t some = count - done < CHUNK ? count - done : CHUNK;
        TRY(price_chunk(self, asked, states + done, some, costs + done));
    }
    return 0;
}

void asked_facts(Asked *asked) {
    double *fact = asked->facts;
#define FACT(name, value) *fact++ = (double)(value);
    REQUEST_TERMS(FACT)
#undef FACT
}

static void formula_dealloc(Formula *self) {
    FREE_ALL(self->price.steps, self->failure.steps);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *formula_new(NEW_ARGUMENTS) {
    PyObject *price, *failure;
    TRY_OR_NULL(READ_NEW("Formula", "TT", "price failure", &price, &failure));
    Formula *self = (Formula *)type->tp_alloc(type, 0);
    if (self != NULL && (read_program(self, price, &self->price) < 0 ||
                         read_program(self, failure, &self->failure) < 0)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

PyTypeObject formula_type = {
    TYPE("Formula", Formula, formula),
};
