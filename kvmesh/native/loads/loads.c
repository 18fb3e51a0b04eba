/* Loads: the live sums of one worker. */
#include "base/shell.h"
#include "loads/loads.h"

enum { NOWHERE, PREFILLING, DECODING }; /* the place of a booking */

static void queue_push(Queue *self, Booking *booking, uint8_t place) {
    booking->older = self->last;
    booking->newer = NULL;
    *(self->last == NULL ? &self->first : &self->last->newer) = booking;
    self->last = booking;
    self->count++;
    booking->place = place;
}

static void queue_take(Queue *self, Booking *booking) {
    *(booking->older == NULL ? &self->first : &booking->older->newer) = booking->newer;
    *(booking->newer == NULL ? &self->last : &booking->newer->older) = booking->older;
    booking->older = booking->newer = NULL;
    booking->place = NOWHERE;
    self->count--;
}

int loads_begin(Loads *self, Booking *booking, double now) {
    REFUSE(booking->loads != NULL, PyExc_ValueError,
           "%R is at a worker already: end it there first", booking);
    TRY(shared_reserve(&self->shared, (size_t)Py_SIZE(booking)));
    if (self->prefilling.count == 0) {
        self->progress_s = now;
        self->oldest_tokens = booking->uncached_tokens;
    }
    queue_push(&self->prefilling, (Booking *)Py_NewRef(booking), PREFILLING);
    booking->loads = self;
    self->prefill_tokens += booking->uncached_tokens;
    self->silent += !booking->streams;
    self->prompt_tokens += booking->prompt_tokens;
    self->active_requests++;
    self->expected_blocks += booking->expected_blocks;
    self->active_blocks += booking->private_blocks +
                           shared_hold(&self->shared, booking->keys, Py_SIZE(booking));
    return 0;
}

void loads_end_prefill(Loads *self, Booking *booking) {
    if (booking->place != PREFILLING) {
        return;
    }
    queue_take(&self->prefilling, booking);
    queue_push(&self->decoding, booking, DECODING);
    self->oldest_tokens = self->prefilling.first == NULL ? 0 : self->prefilling.first->uncached_tokens;
    self->prefill_tokens -= booking->uncached_tokens;
    self->silent -= !booking->streams;
}

void loads_end(Loads *self, Booking *booking) {
    if (booking->place != DECODING) {
        return;
    }
    queue_take(&self->decoding, booking);
    booking->loads = NULL;
    self->prompt_tokens -= booking->prompt_tokens;
    self->active_requests--;
    self->expected_blocks -= booking->expected_blocks;
    self->active_blocks -= booking->private_blocks +
                           shared_release(&self->shared, booking->keys, Py_SIZE(booking));
    Py_DECREF(booking);
}

void loads_correct(Loads *self, long long requests, long long blocks, long long tokens,
                   long long block_size) {
    self->active_requests += requests - self->unseen_requests;
    self->active_blocks += blocks - self->unseen_blocks;
    self->prompt_tokens += (blocks - self->unseen_blocks) * block_size;
    self->prefill_tokens += tokens - self->unseen_tokens;
    self->unseen_requests = requests;
    self->unseen_blocks = blocks;
    self->unseen_tokens = tokens;
}

static PyObject *call_wait_ms(Loads *self, NAMED_ARGUMENTS) {
    double rate, now, step = 0.0;
    TRY_OR_NULL(READ("wait_ms", "dd|d", "ms_per_token now step_tokens", &rate, &now, &step));
    return PyFloat_FromDouble(self->prefill_tokens ? loads_wait_ms(self, rate, now, step) : 0.0);
}

/* Return those that wait for their prefill by request id, oldest first. */
static PyObject *loads_prefilling(Loads *self, void *Py_UNUSED(closure)) {
    PyObject *dict = PyDict_New();
    Booking *next = self->prefilling.first;
    for (; dict != NULL && next != NULL; next = next->newer) {
        if (PyDict_SetItem(dict, next->request_id, (PyObject *)next) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

GETTER(Loads, loads_shared, shared_dict(&self->shared))

static PyObject *loads_booked(Loads *self, void *which) {
    const char *name = which;
    return PyLong_FromLongLong(name[0] == 'r'   ? self->active_requests - self->unseen_requests
                               : name[0] == 'b' ? self->active_blocks - self->unseen_blocks
                                                : self->prefill_tokens - self->unseen_tokens);
}

MEMBERS(members,
    FIELDS(Loads, T_OBJECT_EX, READONLY, worker)
    FIELDS(Loads, T_DOUBLE, READONLY, progress_s)
    FIELDS(Loads, T_LONGLONG, READONLY, prefill_tokens, prompt_tokens, active_requests,
           active_blocks, expected_blocks, silent, unseen_requests, unseen_blocks, unseen_tokens)
    {"waiting_requests", T_PYSSIZET, offsetof(Loads, prefilling.count), READONLY, NULL},)

GETTERS(getters,
    {"prefilling", (getter)loads_prefilling, NULL, "Bookings without a first token.", NULL},
    {"shared", (getter)loads_shared, NULL, "Requests by sharing key.", NULL},
    {"booked_requests", (getter)loads_booked, NULL, NULL, "requests"},
    {"booked_blocks", (getter)loads_booked, NULL, NULL, "blocks"},
    {"booked_tokens", (getter)loads_booked, NULL, NULL, "tokens"})

METHODS(methods, METHOD_KEYWORDS("wait_ms", call_wait_ms))

static void queue_forget(Queue *self) {
    for (Booking *next = self->first; next != NULL; next = next->newer) {
        next->loads = NULL;
    }
}

static void queue_clear(Queue *self) {
    for (Booking *next; (next = self->first) != NULL;) {
        queue_take(self, next);
        Py_DECREF(next);
    }
}

/* Letting go of what a booking holds may run anything: none of them leads here by then. */
static void loads_dealloc(Loads *self) {
    queue_forget(&self->prefilling);
    queue_forget(&self->decoding);
    queue_clear(&self->prefilling);
    queue_clear(&self->decoding);
    PyMem_Free(self->shared.places);
    Py_XDECREF(self->worker);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject loads_type = {
    INNER_TYPE("Loads", Loads, loads),
    .tp_members = members, .tp_getset = getters, .tp_methods = methods,
};
