/* The types Decider and Placed. */
#include "base/shell.h"
#include "decide/decide.h"

/* What a decider owns. */
#define PARTS \
    self->sequences, self->speeds, self->lengths, self->believed[ROUTED], self->believed[HEARD], \
        self->ring, self->totals, self->own, self->index, self->distrusted, self->out, self->health
#define MORE_PARTS \
    self->random, self->replica, self->phases[HASH], self->phases[FIND], self->phases[SCORE], \
        self->phases[DECIDE], self->counts, self->outbox, self->late, self->late_workers, \
        self->late_waiting, self->begun

static int decider_traverse(Decider *self, visitproc visit, void *arg) {
    VISIT_ALL(PARTS);
    VISIT_ALL(MORE_PARTS);
    return 0;
}

static void clear_cohorts(Decider *self) {
    for (Cohort *one = self->cohorts; one < self->cohorts + COHORTS; one++) {
        cohort_clear(one);
    }
}

static int decider_clear(Decider *self) {
    CLEAR_ALL(PARTS);
    CLEAR_ALL(MORE_PARTS);
    clear_cohorts(self);
    return 0;
}

static void decider_dealloc(Decider *self) {
    PyObject_GC_UnTrack(self);
    decider_clear(self);
    drops_free(&self->event_drops);
    drops_free(&self->believed_drops);
    cut_free(&self->cut);
    scan_release(&self->ids);
    FREE_ALL(self->withheld, self->hashes, self->other_hashes, self->costs, self->ties, self->names);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Keep an optional object of a type; -1 with TypeError set. */
static int keep_optional(PyObject **place, PyObject *given, PyTypeObject *type, const char *name) {
    if (given == NULL || given == Py_None) {
        return 0;
    }
    REFUSE(type != NULL && !Py_IS_TYPE(given, type), PyExc_TypeError,
           "%s is a %s or None, not %.100s", name, type->tp_name, Py_TYPE(given)->tp_name);
    *place = Py_NewRef(given);
    return 0;
}

static PyObject *decider_new(NEW_ARGUMENTS) {
    PyObject *routed, *index;
    Decider *self = (Decider *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    if (READ_NEW("Decider", "$+!+!+!+!+!+O+O+UOO+O+D+Dpdd",
                 "sequences speeds lengths distrusted out health random replica routed index late "
                 "late_workers late_waiting smallest_tree_ties predict_ttl_s approx_ttl_s",
                 &sequences_type, &self->sequences, &speeds_type, &self->speeds, &lengths_type,
                 &self->lengths, &PySet_Type, &self->distrusted, &PySet_Type, &self->out,
                 &self->health, &self->random, &self->replica, &routed, &index, &self->late,
                 &self->late_workers, &self->late_waiting, &self->smallest,
                 &self->predict_ttl_s, &self->approx_ttl_s) < 0 ||
        keep_optional((PyObject **)self->believed + ROUTED, routed, &approx_type, "routed") < 0 ||
        keep_optional(&self->index, index, NULL, "index") < 0) {
        Py_CLEAR(self);
    } else {
        self->block_size = self->sequences->block_size;
    }
    return (PyObject *)self;
}

/* listen(heard | None): what others tell of their decisions is believed from now on */
static PyObject *decider_listen(Decider *self, PyObject *hints) {
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "beliefs were changed within a decision");
    PyObject *kept = NULL;
    TRY_OR_NULL(keep_optional(&kept, hints, &approx_type, "hints"));
    clear_cohorts(self);
    self->priced = 0;
    Py_XSETREF(self->believed[HEARD], (Approx *)kept);
    Py_RETURN_NONE;
}

/* log(ring, totals, tokens, phases, begun): what `decide`, `enter`, `seen` and `finish` write to */
static PyObject *decider_log(Decider *self, PyObject *args) {
    PyObject *ring, *totals, *tokens, *begun, *phases[PHASES];
    if (!PyArg_ParseTuple(args, "O!O!O!(O!O!O!O!)O", &ring_type, &ring, &totals_type, &totals,
                          &token_counts_type, &tokens, &histogram_type, phases + HASH,
                          &histogram_type, phases + FIND, &histogram_type, phases + SCORE,
                          &histogram_type, phases + DECIDE, &begun)) {
        return NULL;
    }
    Py_XSETREF(self->ring, (Ring *)Py_NewRef(ring));
    Py_XSETREF(self->totals, (Totals *)Py_NewRef(totals));
    Py_XSETREF(self->counts, (TokenCounts *)Py_NewRef(tokens));
    for (int i = 0; i < PHASES; i++) {
        Py_XSETREF(self->phases[i], (Histogram *)Py_NewRef(phases[i]));
    }
    Py_XSETREF(self->begun, Py_NewRef(begun));
    Py_RETURN_NONE;
}

/* follow(course) */
static PyObject *decider_follow(Decider *self, PyObject *course) {
    REFUSE_OR_NULL(!Py_IS_TYPE(course, &course_type), PyExc_TypeError, "a Course, not %.100s",
                   Py_TYPE(course)->tp_name);
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "a policy was changed within a decision");
    Py_XSETREF(self->own, (Course *)Py_NewRef(course));
    self->by = self->own;
    Py_RETURN_NONE;
}

static PyObject *decider_resize(Decider *self, PyObject *size) {
    long long block_size = PyLong_AsLongLong(size);
    TRY_OR_NULL(no_error());
    REFUSE_OR_NULL(block_size < 1 || block_size > MOST_BLOCK_SIZE, PyExc_ValueError,
                   "a block has 1 to %lld tokens, not %lld", MOST_BLOCK_SIZE, block_size);
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "blocks were resized within a decision");
    self->block_size = block_size;
    Py_RETURN_NONE;
}

/* look_for(sizes): those besides its own in which workers tell what they cache */
static PyObject *decider_look_for(Decider *self, PyObject *sizes) {
    REFUSE_OR_NULL(!PyTuple_CheckExact(sizes) || PyTuple_GET_SIZE(sizes) > MOST_SIZES,
                   PyExc_ValueError, "block sizes are a tuple of %d at most, not %.100R",
                   MOST_SIZES, sizes);
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "blocks were resized within a decision");
    long long others[MOST_SIZES] = {0};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++) {
        others[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
        TRY_OR_NULL(no_error());
        REFUSE_OR_NULL(others[i] < 1 || others[i] > MOST_BLOCK_SIZE, PyExc_ValueError,
                       "a block has 1 to %lld tokens, not %lld", MOST_BLOCK_SIZE, others[i]);
    }
    memcpy(self->others, others, sizeof others);
    self->other_count = (int)PyTuple_GET_SIZE(sizes);
    Py_RETURN_NONE;
}

/* tell(outbox | None) */
static PyObject *decider_publish_to(Decider *self, PyObject *outbox) {
    REFUSE_OR_NULL(outbox != Py_None && !Py_IS_TYPE(outbox, &outbox_type), PyExc_TypeError,
                   "an outbox is a BookingOutbox or None, not %.100R", outbox);
    Py_XSETREF(self->outbox, outbox == Py_None ? NULL : (BookingOutbox *)Py_NewRef(outbox));
    Py_RETURN_NONE;
}

MEMBERS(decider_members,
    FIELDS(Decider, T_LONGLONG, READONLY, decisions, overlap_blocks, request_blocks))

METHODS(decider_methods,
    METHOD_O("follow", decider_follow),
    METHOD_O("resize", decider_resize),
    METHOD_O("look_for", decider_look_for),
    METHOD_O("publish_to", decider_publish_to),
    METHOD_FASTCALL("decide", decider_decide),
    METHOD_FASTCALL("choose", decider_choose),
    METHOD_O("listen", decider_listen),
    {"log", (PyCFunction)decider_log, METH_VARARGS, NULL},
    METHOD_FASTCALL("runners_up", decider_runners_up),
    METHOD_FASTCALL("seen", decider_seen),
    METHOD_FASTCALL("finish", decider_finish),
    METHOD_FASTCALL("book", decider_book),
    METHOD_FASTCALL("enter", decider_enter),
    METHOD_FASTCALL("begin", decider_begin),
    METHOD_FASTCALL("grow", decider_grow),
    METHOD_FASTCALL("release", decider_release),
    METHOD_FASTCALL("free", decider_free),
    METHOD_FASTCALL("learn", decider_learn),
    METHOD_O("prefilled_s", decider_prefilled_s))

PyTypeObject decider_type = {
    GC_TYPE("Decider", Decider, decider),
    .tp_clear = (inquiry)decider_clear,
    .tp_members = decider_members, .tp_methods = decider_methods,
};

DEALLOC(Placed, placed, record, booking, request_id, model, hashes, taught, inputs)

GETTER(Placed, placed_families, forecast_families(&self->forecast))
GETTER(Placed, placed_teaches, PyBool_FromLong(self->taught != NULL))

MEMBERS(placed_members,
    FIELDS(Placed, T_OBJECT, READONLY, record, booking, request_id, model, hashes, inputs)
    FIELDS(Placed, T_LONGLONG, READONLY, prompt_tokens, expected_output_tokens, choices)
    FIELDS(Placed, T_LONGLONG, 0, event_tokens)
    FIELDS(Placed, T_BOOL, READONLY, streams, waiting, approximate, prefilled)
    FIELDS(Placed, T_DOUBLE, READONLY, unseen_s, sent_s))

GETTERS(placed_getters,
    {"families", (getter)placed_families, NULL, "Of the prompt, the widest first.", NULL},
    {"teaches", (getter)placed_teaches, NULL, "Whether no events tell what its worker caches.", NULL})

PyTypeObject placed_type = {
    INNER_TYPE("Placed", Placed, placed),
    .tp_members = placed_members, .tp_getset = placed_getters,
};
