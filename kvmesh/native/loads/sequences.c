/* ActiveSequences: what bookings do to the sums of their workers. */
#include "base/arguments.h"
#include "base/names.h"
#include "loads/sequences.h"
#include "loads/turns.h"

/* So many workers may have prefills nobody sees end that asking each time would be the loop. */
#define SETTLE_EVERY_S 0.01

static PyObject *local_owner;

int sequences_ready(void) {
    local_owner = PyUnicode_InternFromString("");
    return local_owner == NULL ? -1 : arrivals_ready();
}

static inline long long blocks_of(const Sequences *self, long long tokens) {
    return (tokens + self->block_size - 1) / self->block_size;
}

static inline double later(double a, double b) { return b > a ? b : a; }

Loads *sequences_loads(Sequences *self, PyObject *worker) {
    PyObject *name = read_text("a worker", worker);
    Loads *loads = name == NULL ? NULL : (Loads *)PyDict_GetItemWithError(self->loads, name);
    if (loads == NULL && name != NULL && !PyErr_Occurred()) {
        loads = (Loads *)loads_type.tp_alloc(&loads_type, 0);
        if (loads != NULL) {
            loads->worker = Py_NewRef(name);
            if (PyDict_SetItem(self->loads, name, (PyObject *)loads) < 0) {
                Py_CLEAR(loads);
            } else {
                Py_DECREF(loads); /* the dict's own remains */
            }
        }
    }
    Py_XDECREF(name);
    return loads;
}

Booking *sequences_find(Sequences *self, PyObject *request_id) {
    PyObject *name = read_text("a request id", request_id);
    PyObject *found = name == NULL ? NULL : PyDict_GetItemWithError(self->bookings, name);
    Py_XDECREF(name);
    return found != NULL && Py_IS_TYPE(found, &booking_type) ? (Booking *)found : NULL;
}

/* Return a booking of a worker that it has not begun at; NULL with an error set. */
static Booking *make_booking(const Sequences *self, PyObject *request_id, Loads *loads,
                             const DemandC *demand) {
    long long prompt = within(0, demand->prompt_tokens, MOST_TOKENS);
    long long blocks = blocks_of(self, prompt);
    long long keys = within(0, sharing_count(&demand->keys), key_count(blocks));
    PyObject *owner = read_text("an owner", demand->owner == NULL ? local_owner : demand->owner);
    PyObject *name = owner == NULL ? NULL : read_text("a request id", request_id);
    Booking *booking = name == NULL ? NULL : booking_make((Py_ssize_t)keys);
    if (booking == NULL) {
        XDECREF_ALL(owner, name);
        return NULL;
    }
    booking->request_id = name;
    booking->owner = owner;
    booking->worker = Py_NewRef(loads->worker);
    booking->hashes = Py_XNewRef(demand->hashes);
    booking->prompt_tokens = prompt;
    booking->uncached_tokens = within(0, demand->uncached_tokens, prompt);
    booking->service_tokens = booking->uncached_tokens;
    booking->private_blocks = blocks - key_depth(keys);
    booking->expected_blocks =
        blocks_of(self, within(0, demand->expected_output_tokens, MOST_TOKENS));
    booking->streams = demand->streams != 0;
    booking->prefilling = 1;
    booking->turn = demand->turn != 0;
    booking->keep_s = (uint16_t)within(0, demand->keep_s, UINT16_MAX);
    for (long long i = 0; i < keys; i++) {
        booking->keys[i] = sharing_key(&demand->keys, i + 1);
    }
    return booking;
}

/* Enter a booking that was just made; -1 with an error set. */
static int enter(Sequences *self, Loads *loads, Booking *booking, double now) {
    TRY_IF(!booking->streams, PyDict_SetItem(self->silent, loads->worker, (PyObject *)loads));
    TRY(loads_begin(loads, booking, now));
    if (PyDict_SetItem(self->bookings, booking->request_id, (PyObject *)booking) < 0) {
        loads_end_prefill(loads, booking);
        loads_end(loads, booking);
        return -1;
    }
    self->unstreamed += !booking->streams;
    arrivals_fold(self->arrivals, now);
    return 0;
}

int sequences_late(Sequences *self, PyObject *late_workers, PyObject *worker) {
    PyObject *score =
        PyDict_GET_SIZE(late_workers) ? PyDict_GetItemWithError(late_workers, worker) : NULL;
    if (score == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    long found = PyLong_AsLong(score);
    const Loads *loads = found == -1 && PyErr_Occurred() ? NULL : sequences_loads(self, worker);
    return loads == NULL ? -1 : found < 0 || loads->prefilling.count > 0;
}

Booking *sequences_book(Sequences *self, PyObject *request_id, PyObject *worker,
                        const DemandC *demand, double now) {
    if (sequences_find(self, request_id) != NULL || PyErr_Occurred()) {
        return NULL;
    }
    Loads *loads = (Loads *)Py_XNewRef(sequences_loads(self, worker));
    Booking *booking = loads == NULL ? NULL : make_booking(self, request_id, loads, demand);
    if (booking != NULL) {
        booking->booked_s = booking->renewed_s = booking->output_s = now;
        if (enter(self, loads, booking, now) < 0) {
            Py_CLEAR(booking);
        }
    }
    Py_XDECREF(loads);
    if (booking != NULL && booking->turn && turns_take(self->turns, booking->worker) < 0) {
        Py_CLEAR(booking);
    }
    return booking;
}

/* Take a request out of the backlog; whether it is done the caller knows. */
static void end_prefill(Sequences *self, Loads *loads, Booking *booking) {
    loads_end_prefill(loads, booking);
    if (!booking->streams && loads->silent == 0 &&
        PyDict_DelItem(self->silent, loads->worker) < 0) {
        PyErr_Clear(); /* it was not among them */
    }
}

/* End the older prefills that nobody will see end; return when the first of all began. */
static double end_older(Sequences *self, Loads *loads, Booking *booking, double began_s,
                        double now) {
    for (Booking *older = loads->prefilling.first, *next; older != NULL && older != booking;
         older = next) {
        next = older->newer;
        if (!older->streams) {
            double since_s = older->booked_s < began_s ? older->booked_s : began_s;
            began_s = later(loads->progress_s, since_s);
            booking->service_tokens += older->uncached_tokens;
            end_prefill(self, loads, older);
            older->prefilling = 0;
            older->output_s = now;
        }
    }
    return began_s;
}

int sequences_first_token(Sequences *self, Booking *booking, double now) {
    Loads *loads = booking->loads;
    if (loads == NULL || !booking->prefilling) {
        return 0;
    }
    double began_s = later(loads->progress_s, booking->booked_s);
    if (loads->silent) {
        began_s = end_older(self, loads, booking, began_s, now);
    }
    end_prefill(self, loads, booking);
    booking->prefilling = 0;
    booking->service_s = later(0.0, now - began_s);
    booking->renewed_s = booking->output_s = loads->progress_s = now;
    Py_CLEAR(booking->hashes);
    return 1;
}

void sequences_foresee(Booking *booking, long long blocks) {
    long long change = blocks - booking->foreseen_blocks;
    if (booking->loads != NULL) {
        booking->foreseen_blocks = blocks;
        booking->private_blocks += change;
        booking->expected_blocks -= change;
        loads_grow(booking->loads, change, change);
    }
}

void sequences_grow(Sequences *self, Booking *booking, long long output_tokens, double now) {
    output_tokens = within(-1, output_tokens, MOST_TOKENS);
    booking->renewed_s = later(booking->renewed_s, now);
    if (output_tokens <= booking->output_tokens || booking->loads == NULL) {
        return;
    }
    booking->output_s = now;
    sequences_foresee(booking, 0);
    long long before = blocks_of(self, booking->prompt_tokens + booking->output_tokens);
    long long grown = blocks_of(self, booking->prompt_tokens + output_tokens) - before;
    booking->output_tokens = output_tokens;
    if (grown) {
        long long came_true = booking->expected_blocks < grown ? booking->expected_blocks : grown;
        booking->private_blocks += grown;
        booking->expected_blocks -= came_true;
        loads_grow(booking->loads, grown, came_true);
    }
}

int sequences_finish(Sequences *self, Booking *booking) {
    PyObject *found = PyDict_GetItemWithError(self->bookings, booking->request_id);
    if (found != (PyObject *)booking) {
        return PyErr_Occurred() ? -1 : 0;
    }
    TRY(PyDict_DelItem(self->bookings, booking->request_id));
    self->unstreamed -= !booking->streams;
    Loads *loads = booking->loads;
    if (loads != NULL) {
        if (booking->prefilling) {
            end_prefill(self, loads, booking);
        }
        loads_end(loads, booking);
    }
    return 1;
}

void sequences_renew_owner(Sequences *self, PyObject *owner, double now) {
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(self->bookings, &place, &key, &value)) {
        Booking *booking = (Booking *)value;
        if (Py_IS_TYPE(value, &booking_type) && now > booking->renewed_s &&
            (booking->owner == owner || PyUnicode_Compare(booking->owner, owner) == 0)) {
            booking->renewed_s = now;
        }
    }
}

/* End the overdue prefills of one worker. */
static void settle_one(Sequences *self, Loads *loads, double now, double ms_per_token) {
    double per_token_s = OVERDUE * ms_per_token / 1000.0;
    for (Booking *oldest; (oldest = loads->prefilling.first) != NULL;) {
        double done_s = loads->progress_s + per_token_s * (double)oldest->uncached_tokens;
        if (oldest->streams || now < done_s) {
            return;
        }
        end_prefill(self, loads, oldest);
        oldest->prefilling = 0;
        loads->progress_s = oldest->output_s = done_s;
    }
}

int sequences_settle(Sequences *self, double now, SpeedOf speed_of, void *context) {
    double passed_s = now - self->settled_s;
    if (0.0 <= passed_s && passed_s < SETTLE_EVERY_S) {
        return 0;
    }
    self->settled_s = now;
    if (PyDict_GET_SIZE(self->silent) == 0) {
        return 0;
    }
    PyObject *workers = PyDict_Values(self->silent);
    int failed = workers == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(workers); i++) {
        Loads *loads = (Loads *)PyList_GET_ITEM(workers, i);
        double ms_per_token;
        failed = speed_of(context, loads, &ms_per_token);
        if (!failed) {
            settle_one(self, loads, now, ms_per_token);
        }
    }
    Py_XDECREF(workers);
    return failed;
}
