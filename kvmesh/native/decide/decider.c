/* The types Decider and Placed. */
#include "decide/decide.h"

#include <string.h>
#include <structmember.h>

/* What a decider owns. */
static PyObject **decider_owned(Decider *self, size_t place) {
    PyObject **owned[] = {
        (PyObject **)&self->sequences, (PyObject **)&self->speeds, (PyObject **)&self->lengths,
        (PyObject **)&self->believed[ROUTED], (PyObject **)&self->believed[HEARD],
        (PyObject **)&self->ring,      (PyObject **)&self->totals,
        (PyObject **)&self->own,       &self->index,               &self->distrusted,
        &self->out,                    &self->health,              &self->random,
        &self->replica,                (PyObject **)&self->phases[HASH],
        (PyObject **)&self->phases[FIND], (PyObject **)&self->phases[SCORE],
        (PyObject **)&self->phases[DECIDE],
        (PyObject **)&self->counts,    (PyObject **)&self->outbox,
        &self->late,                   &self->late_workers,        &self->late_waiting,
        &self->begun,
    };
    return place < sizeof owned / sizeof *owned ? owned[place] : NULL;
}

static int decider_traverse(Decider *self, visitproc visit, void *arg) {
    PyObject **owned;
    for (size_t i = 0; (owned = decider_owned(self, i)) != NULL; i++) {
        Py_VISIT(*owned);
    }
    return 0;
}

static int decider_clear(Decider *self) {
    PyObject **owned;
    for (size_t i = 0; (owned = decider_owned(self, i)) != NULL; i++) {
        Py_CLEAR(*owned);
    }
    for (Cohort *one = self->cohorts; one < self->cohorts + COHORTS; one++) {
        cohort_clear(one);
    }
    return 0;
}

static void decider_dealloc(Decider *self) {
    PyObject_GC_UnTrack(self);
    decider_clear(self);
    drops_free(&self->event_drops);
    drops_free(&self->believed_drops);
    cut_free(&self->cut);
    PyMem_Free(self->withheld);
    scan_release(&self->ids);
    PyMem_Free(self->hashes);
    PyMem_Free(self->costs);
    PyMem_Free(self->ties);
    PyMem_Free(self->names);
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
    static char *names[] = {"sequences", "speeds",       "lengths",      "distrusted",
                            "out",       "health",       "random",       "replica",
                            "routed",    "index",        "late",         "late_workers",
                            "late_waiting", "smallest_tree_ties", "predict_ttl_s",
                            "approx_ttl_s", NULL};
    PyObject *sequences, *speeds, *lengths, *distrusted, *out, *health, *random, *replica, *routed;
    PyObject *index, *late, *late_workers, *late_waiting;
    int smallest;
    double predict_ttl_s, approx_ttl_s;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "$O!O!O!O!O!OOUOOOO!O!pdd", names, &sequences_type, &sequences,
            &speeds_type, &speeds, &lengths_type, &lengths, &PySet_Type, &distrusted, &PySet_Type,
            &out, &health, &random, &replica, &routed, &index, &late, &PySet_Type, &late_workers,
            &PyDict_Type, &late_waiting, &smallest, &predict_ttl_s, &approx_ttl_s)) {
        return NULL;
    }
    Decider *self = (Decider *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->sequences = (Sequences *)Py_NewRef(sequences);
    self->speeds = (Speeds *)Py_NewRef(speeds);
    self->lengths = (Lengths *)Py_NewRef(lengths);
    self->distrusted = Py_NewRef(distrusted);
    self->out = Py_NewRef(out);
    self->late = Py_NewRef(late);
    self->late_workers = Py_NewRef(late_workers);
    self->late_waiting = Py_NewRef(late_waiting);
    self->health = Py_NewRef(health);
    self->random = Py_NewRef(random);
    self->replica = Py_NewRef(replica);
    self->block_size = self->sequences->block_size;
    self->smallest = smallest;
    self->predict_ttl_s = predict_ttl_s;
    self->approx_ttl_s = approx_ttl_s;
    if (keep_optional((PyObject **)self->believed + ROUTED, routed, &approx_type, "routed") < 0 ||
        keep_optional(&self->index, index, NULL, "index") < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* listen(heard | None): what others tell of their decisions is believed from now on */
static PyObject *decider_listen(Decider *self, PyObject *hints) {
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "beliefs were changed within a decision");
    PyObject *kept = NULL;
    TRY_OR_NULL(keep_optional(&kept, hints, &approx_type, "hints"));
    for (Cohort *one = self->cohorts; one < self->cohorts + COHORTS; one++) {
        cohort_clear(one);
    }
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

/* tell(outbox | None) */
static PyObject *decider_publish_to(Decider *self, PyObject *outbox) {
    REFUSE_OR_NULL(outbox != Py_None && !Py_IS_TYPE(outbox, &outbox_type), PyExc_TypeError,
                   "an outbox is a BookingOutbox or None, not %.100R", outbox);
    Py_XSETREF(self->outbox, outbox == Py_None ? NULL : (BookingOutbox *)Py_NewRef(outbox));
    Py_RETURN_NONE;
}

static PyMemberDef decider_members[] = {
    {"decisions", T_LONGLONG, offsetof(Decider, decisions), READONLY, "Made here."},
    {"overlap_blocks", T_LONGLONG, offsetof(Decider, overlap_blocks), READONLY, "Found cached."},
    {"request_blocks", T_LONGLONG, offsetof(Decider, request_blocks), READONLY, "Of prompts."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef decider_methods[] = {
    {"follow", (PyCFunction)decider_follow, METH_O, "Decide by this policy from now on."},
    {"resize", (PyCFunction)decider_resize, METH_O, "Decide by blocks of so many tokens."},
    {"publish_to", (PyCFunction)decider_publish_to, METH_O, "Have an outbox told of bookings from now on."},
    {"decide", (PyCFunction)(void (*)(void))decider_decide, METH_FASTCALL,
     "decide(scanned, packed, request_id, tenant, cohort, now, whole, name, course, states, output, "
     "most_wait_ms, root, inputs) -> Placed | None | float"},
    {"choose", (PyCFunction)(void (*)(void))decider_choose, METH_FASTCALL,
     "choose(request_id, hashes, packed, ids, prompt_tokens, output_tokens, cohort, states, now, "
     "whole, course, inputs, prefilled, likeliest) -> Record"},
    {"listen", (PyCFunction)decider_listen, METH_O, "Believe what others tell of theirs, too."},
    {"log", (PyCFunction)decider_log, METH_VARARGS, "Write to a log from now on."},
    {"runners_up", (PyCFunction)(void (*)(void))decider_runners_up, METH_FASTCALL,
     "runners_up(states, most) -> names | None"},
    {"seen", (PyCFunction)(void (*)(void))decider_seen, METH_FASTCALL,
     "seen(placed, tokens, now) -> whether these were the first"},
    {"finish", (PyCFunction)(void (*)(void))decider_finish, METH_FASTCALL,
     "finish(placed, served, state, status, usage, now) -> (booking | None, well)"},
    {"book", (PyCFunction)(void (*)(void))decider_book, METH_FASTCALL,
     "book(record, request, packed, course, inputs, now) -> Placed"},
    {"enter", (PyCFunction)(void (*)(void))decider_enter, METH_FASTCALL,
     "enter(placed, request_id, tenant, again, now)"},
    {"begin", (PyCFunction)(void (*)(void))decider_begin, METH_FASTCALL,
     "begin(request_id, now) -> booking | None"},
    {"grow", (PyCFunction)(void (*)(void))decider_grow, METH_FASTCALL,
     "grow(request_id, tokens, now)"},
    {"release", (PyCFunction)(void (*)(void))decider_release, METH_FASTCALL,
     "release(request_id, served, now) -> booking | None"},
    {"free", (PyCFunction)(void (*)(void))decider_free, METH_FASTCALL,
     "free(placed, served, now) -> booking | None"},
    {"prefilled_s", (PyCFunction)decider_prefilled_s, METH_O,
     "Return when the prefill of a released booking is taken to have ended."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject decider_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Decider",
    .tp_doc = "Decides a request in one call.",
    .tp_basicsize = sizeof(Decider),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = decider_new,
    .tp_dealloc = (destructor)decider_dealloc,
    .tp_traverse = (traverseproc)decider_traverse,
    .tp_clear = (inquiry)decider_clear,
    .tp_members = decider_members,
    .tp_methods = decider_methods,
};

static void placed_dealloc(Placed *self) {
    XDECREF_ALL(self->record, self->booking, self->request_id, self->model, self->hashes,
                self->inputs);
    PyObject_Free(self);
}

static PyObject *placed_families(Placed *self, void *closure) {
    (void)closure;
    PyObject *made = PyTuple_New(self->forecast.families);
    for (int i = 0; made != NULL && i < self->forecast.families; i++) {
        PyObject *one = Py_BuildValue("LK", self->forecast.family[i].tokens,
                                      (unsigned long long)self->forecast.family[i].key);
        if (one == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, i, one);
        }
    }
    return made;
}

static PyMemberDef placed_members[] = {
    {"record", T_OBJECT, offsetof(Placed, record), READONLY, "What the log keeps of it."},
    {"booking", T_OBJECT, offsetof(Placed, booking), READONLY, "Live or not."},
    {"request_id", T_OBJECT, offsetof(Placed, request_id), READONLY, "Of its booking."},
    {"model", T_OBJECT, offsetof(Placed, model), READONLY, "The model's name."},
    {"hashes", T_OBJECT, offsetof(Placed, hashes), READONLY, "None after the first token."},
    {"prompt_tokens", T_LONGLONG, offsetof(Placed, prompt_tokens), READONLY, NULL},
    {"expected_output_tokens", T_LONGLONG, offsetof(Placed, expected_output_tokens), READONLY, NULL},
    {"choices", T_LONGLONG, offsetof(Placed, choices), READONLY, NULL},
    {"event_tokens", T_LONGLONG, offsetof(Placed, event_tokens), 0, NULL},
    {"streams", T_BOOL, offsetof(Placed, streams), READONLY, NULL},
    {"waiting", T_BOOL, offsetof(Placed, waiting), READONLY, "No token was seen."},
    {"inputs", T_OBJECT, offsetof(Placed, inputs), READONLY, "What was asked beside its prompt."},
    {"unseen_s", T_DOUBLE, offsetof(Placed, unseen_s), READONLY, NULL},
    {"sent_s", T_DOUBLE, offsetof(Placed, sent_s), READONLY, "NaN: not recorded yet."},
    {"approximate", T_BOOL, offsetof(Placed, approximate), READONLY, "No event confirms its hashes."},
    {"prefilled", T_BOOL, offsetof(Placed, prefilled), READONLY, "Computed elsewhere."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef placed_getters[] = {
    {"families", (getter)placed_families, NULL, "Of the prompt, the widest first.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject placed_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Placed",
    .tp_doc = "A request that was decided.",
    .tp_basicsize = sizeof(Placed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)placed_dealloc,
    .tp_members = placed_members,
    .tp_getset = placed_getters,
};
