/* PrefixCounts: how often prompts began alike, by depth, older ones counting less. */
#include "base/arrays.h"
#include "base/mixing.h"
#include "base/shell.h"
#include "insight/readers.h"

#include <math.h>

/* A request counts half after 120 s. */
#define RATE (0.6931471805599453 / 120.0)
#define RESCALE_AT 1e12
enum { DEPTHS = 42 };

typedef struct {
    uint64_t key, parent;
    long long depth, visits;
    double weight, cached;
} Node;

typedef struct {
    PyObject_HEAD
    Node *nodes;     /* in the order in which they came */
    uint32_t *index; /* place + 1, 0 for free; `mask` + 1 of them */
    uint32_t count, room, mask;
    Py_ssize_t max_nodes;
    double total, origin_s; /* origin_s NAN: nothing was counted */
} PrefixCounts;

static uint32_t *place_of(const PrefixCounts *self, uint64_t key) {
    return INDEX_SLOT(self->index, self->mask, self->nodes, key);
}

static double weight_of(PrefixCounts *self, double now) {
    if (isnan(self->origin_s)) {
        self->origin_s = now;
    }
    double past = now - self->origin_s;
    double weight = exp(RATE * (past > 0.0 ? past : 0.0));
    if (!(weight > RESCALE_AT)) {
        return weight;
    }
    self->origin_s = now;
    self->total /= weight;
    for (uint32_t i = 0; i < self->count; i++) {
        self->nodes[i].weight /= weight;
        self->nodes[i].cached /= weight;
    }
    return 1.0;
}

typedef struct {
    Node node;
    uint32_t place;
} Ranked;

static int compare_ranked(const void *one, const void *other) {
    const Ranked *a = one, *b = other;
    if (a->node.weight != b->node.weight) {
        return a->node.weight > b->node.weight ? -1 : 1;
    }
    if (a->node.depth != b->node.depth) {
        return a->node.depth < b->node.depth ? -1 : 1;
    }
    return a->place < b->place ? -1 : 1;
}

/* Keep the heavier half; -1 with MemoryError set. */
static int shrink(PrefixCounts *self) {
    Ranked *ranked = PyMem_Calloc(self->count, sizeof *ranked);
    NEED_MEMORY(ranked);
    for (uint32_t i = 0; i < self->count; i++) {
        ranked[i] = (Ranked){self->nodes[i], i};
    }
    qsort(ranked, self->count, sizeof *ranked, compare_ranked);
    self->count = (uint32_t)(self->max_nodes / 2);
    memset(self->index, 0, ((size_t)self->mask + 1) * sizeof *self->index);
    for (uint32_t i = 0; i < self->count; i++) {
        self->nodes[i] = ranked[i].node;
        *place_of(self, ranked[i].node.key) = i + 1;
    }
    PyMem_Free(ranked);
    return 0;
}

static long long depth_at(int number) {
    return number < 2 ? number + 1 : (number % 2 ? 4LL : 3LL) << (number / 2 - 1);
}

static int count_prompt(PrefixCounts *self, const uint64_t *hashes, Py_ssize_t count,
                        long long cached_blocks, double now) {
    double weight = weight_of(self, now);
    uint64_t parent = 0;
    self->total += weight;
    for (int number = 0; number < DEPTHS && depth_at(number) <= count; number++) {
        long long depth = depth_at(number);
        uint64_t key = hashes[depth - 1];
        uint32_t *place = place_of(self, key);
        if (*place == 0) {
            self->nodes[self->count] = (Node){.key = key, .parent = parent, .depth = depth};
            *place = ++self->count;
        }
        Node *node = &self->nodes[*place - 1];
        node->visits++;
        node->weight += weight;
        node->cached += depth <= cached_blocks ? weight
                                               : weight * (double)cached_blocks / (double)depth;
        parent = key;
    }
    return (Py_ssize_t)self->count > self->max_nodes ? shrink(self) : 0;
}

static PyObject *record_method(PrefixCounts *self, ARGUMENTS) {
    GivenU64s prompt = {.at = NULL};
    PyObject *hashes;
    long long cached;
    double now;
    if (READ_PLACED("record", "OLd", "hashes cached_blocks now", &hashes, &cached, &now) < 0 ||
        u64s_read(&prompt, hashes) < 0) {
        u64s_close(&prompt);
        return NULL;
    }
    int failed = count_prompt(self, prompt.at, prompt.count, cached, now) < 0;
    u64s_close(&prompt);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *weight_method(PrefixCounts *self, PyObject *given) {
    double now;
    return read_double(given, &now) < 0 ? NULL : PyFloat_FromDouble(weight_of(self, now));
}

RETURNS(PrefixCounts, total_method, PyFloat_FromDouble(self->total))

static PyObject *rows_method(PrefixCounts *self, PyObject *Py_UNUSED(none)) {
    PyObject *rows = PyList_New(0);
    for (uint32_t i = 0; rows != NULL && i < self->count; i++) {
        Node node = self->nodes[i]; /* making objects may run anything */
        PyObject *row = Py_BuildValue("KKLLdd", node.key, node.parent, node.depth, node.visits,
                                      node.weight, node.cached);
        append_made(&rows, row);
    }
    return rows;
}

static PyObject *counts_new(NEW_ARGUMENTS) {
    Py_ssize_t most;
    TRY_OR_NULL(READ_NEW("PrefixCounts", "n", "max_nodes", &most));
    REFUSE_OR_NULL(most < 1 || most > 1 << 24, PyExc_ValueError,
                   "at least 1 prefix is counted, not %zd", most);
    PrefixCounts *self = (PrefixCounts *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    uint32_t room = (uint32_t)most + DEPTHS, slots = 64;
    while (slots < 2 * room) {
        slots *= 2;
    }
    self->max_nodes = most;
    self->origin_s = NAN;
    self->room = room;
    self->mask = slots - 1;
    self->nodes = PyMem_Calloc(room, sizeof *self->nodes);
    self->index = PyMem_Calloc(slots, sizeof *self->index);
    if (self->nodes == NULL || self->index == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void counts_dealloc(PrefixCounts *self) {
    FREE_ALL(self->nodes, self->index);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

METHODS(methods,
    METHOD_FASTCALL("record", record_method),
    METHOD_O("weight", weight_method),
    METHOD_NOARGS("total", total_method),
    METHOD_NOARGS("rows", rows_method))

PyTypeObject prefix_counts_type = {
    TYPE("PrefixCounts", PrefixCounts, counts),
    .tp_methods = methods,
};
