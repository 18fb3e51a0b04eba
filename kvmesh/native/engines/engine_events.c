/* A batch as core.engines.engine_events has it, and the memory of one: see engine_batch.h. */
#include "base/arrays.h"
#include "engines/engine_batch.h"

#include <limits.h>

#define KEPT_ITEMS (1 << 17)

EngineEvent *engine_batch_add(EngineBatch *self, int what) {
    TRY_OR_NULL(RAW_GROW(self->events, self->count, self->room, 16));
    EngineEvent *event = self->events + self->count++;
    *event = (EngineEvent){.what = what};
    return event;
}

void engine_batch_free(EngineBatch *self) {
    RAW_FREE_ALL(self->hashes.items, self->extras.items, self->tokens.items, self->events,
                 self->bytes);
    *self = (EngineBatch){.count = 0};
}

void engine_batch_trim(EngineBatch *self) {
    if (self->hashes.room > KEPT_ITEMS || self->tokens.room > KEPT_ITEMS || self->extras.room > KEPT_ITEMS ||
        self->room > KEPT_ITEMS / 16 || self->byte_room > KEPT_ITEMS) {
        engine_batch_free(self);
    }
}

int engine_root(const EngineNames *names, PyObject *lora, PyObject *salt, uint64_t *root) {
    PyObject *found = PyObject_CallFunctionObjArgs(names->root_of, lora, salt, NULL);
    NEED(found);
    *root = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return *root == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

/* Return an attribute of this very type, which `is` says; NULL with an error set. */
static PyObject *take_exact(PyObject *object, const char *name, PyTypeObject *type, const char *is) {
    PyObject *given = PyObject_GetAttrString(object, name);
    if (given != NULL && !Py_IS_TYPE(given, type)) {
        PyErr_Format(PyExc_TypeError, "%s %s, not %.100s", name, is, Py_TYPE(given)->tp_name);
        Py_CLEAR(given);
    }
    return given;
}

/* Append a tuple of u64s; -1 with an error set. */
static int take_numbers(Blocks *to, PyObject *object, const char *name, Py_ssize_t *count) {
    PyObject *numbers = take_exact(object, name, &PyTuple_Type, "is a tuple");
    NEED(numbers);
    *count = PyTuple_GET_SIZE(numbers);
    int failed = blocks_reserve(to, *count) < 0;
    for (Py_ssize_t i = 0; !failed && i < *count; i++) {
        uint64_t number = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(numbers, i));
        failed = number == UINT64_MAX && PyErr_Occurred();
        to->items[to->count + i] = number;
    }
    to->count += failed ? 0 : *count;
    Py_DECREF(numbers);
    return failed ? -1 : 0;
}

static int take_number(PyObject *object, const char *name, long long most, long long *number) {
    PyObject *given = PyObject_GetAttrString(object, name);
    NEED(given);
    *number = PyLong_AsLongLong(given);
    Py_DECREF(given);
    TRY_IF(*number == -1, no_error());
    REFUSE(*number < 0 || *number > most, PyExc_ValueError, "%s is %lld, it must be from 0 to %lld",
           name, *number, most);
    return 0;
}

static int take_place(EngineEvent *event, PyObject *object) {
    long long tier;
    TRY(take_number(object, "tier", 255, &tier));
    TRY(take_number(object, "group", LLONG_MAX, &event->group));
    event->tier = (int)tier;
    return 0;
}

static int take_tokens(EngineBatch *self, EngineEvent *event, PyObject *object) {
    PyObject *tokens = take_exact(object, "tokens", &PyBytes_Type, "are bytes");
    NEED(tokens);
    Py_ssize_t size = PyBytes_GET_SIZE(tokens);
    int failed = 0;
    if (size % 4 || (size && ((event->block_size && event->hashes > PY_SSIZE_T_MAX / 4 / event->block_size) ||
                              size != 4 * event->hashes * event->block_size))) {
        PyErr_Format(PyExc_ValueError, "%zd blocks of %lld tokens have %zd bytes", event->hashes,
                     event->block_size, size);
        failed = 1;
    }
    failed = failed || u32s_reserve(&self->tokens, size / 4) < 0;
    if (!failed && size) {
        memcpy(self->tokens.items + self->tokens.count, PyBytes_AS_STRING(tokens), (size_t)size);
    }
    event->tokens = size / 4;
    self->tokens.count += failed ? 0 : event->tokens;
    Py_DECREF(tokens);
    return failed ? -1 : 0;
}

static int take_parent(EngineEvent *event, PyObject *object) {
    PyObject *parent = PyObject_GetAttrString(object, "parent");
    NEED(parent);
    event->has_parent = parent != Py_None;
    event->parent = event->has_parent ? PyLong_AsUnsignedLongLong(parent) : 0;
    Py_DECREF(parent);
    return event->parent == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static PyObject *text_or_nothing(PyObject *object, const char *name) {
    PyObject *text = PyObject_GetAttrString(object, name);
    if (text == Py_None) {
        Py_SETREF(text, PyUnicode_FromString(""));
    }
    return text;
}

static int take_names(const EngineNames *names, EngineEvent *event, PyObject *object) {
    PyObject *lora = text_or_nothing(object, "lora"), *salt = text_or_nothing(object, "salt");
    PyObject *kind = PyObject_GetAttrString(object, "kind");
    event->full = kind == NULL ? -1 : PySet_Contains(names->full, kind);
    int failed = lora == NULL || salt == NULL || event->full < 0 ||
                 engine_root(names, lora, salt, &event->root) < 0;
    XDECREF_ALL(lora, salt, kind);
    return failed ? -1 : 0;
}

static int take_stored(EngineBatch *self, const EngineNames *names, EngineEvent *event, PyObject *object) {
    TRY(take_number(object, "block_size", INT_MAX, &event->block_size));
    TRY(take_tokens(self, event, object));
    TRY(take_parent(event, object));
    TRY(take_names(names, event, object));
    event->first_extra = self->extras.count;
    TRY(take_numbers(&self->extras, object, "extras", &event->extras));
    REFUSE(event->extras && event->extras != event->hashes, PyExc_ValueError,
           "%zd blocks have %zd extras", event->hashes, event->extras);
    return 0;
}

/* Read one event into a copy of its own: code that runs on the way may do anything but call us. */
static int take_event(EngineBatch *self, const EngineNames *names, PyObject *object) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    EngineEvent event = {.first_hash = self->hashes.count, .first_token = self->tokens.count};
    if (type == names->stored || type == names->removed) {
        event.what = type == names->stored ? ENGINE_STORED : ENGINE_REMOVED;
        TRY(take_numbers(&self->hashes, object, "hashes", &event.hashes));
        TRY(take_place(&event, object));
    } else if (type == names->cleared) {
        event.what = ENGINE_CLEARED;
    } else {
        return set_error(PyExc_TypeError, "an engine's event is none of its types, but %.100s",
                         Py_TYPE(object)->tp_name);
    }
    TRY_IF(event.what == ENGINE_STORED, take_stored(self, names, &event, object));
    EngineEvent *added = engine_batch_add(self, event.what);
    NEED(added);
    *added = event;
    return 0;
}

int engine_batch_take(EngineBatch *self, const EngineNames *names, PyObject *batch) {
    self->hashes.count = self->tokens.count = self->extras.count = self->count = 0;
    TRY(take_number(batch, "unknown_fields", LLONG_MAX, &self->unknown_fields));
    TRY(take_number(batch, "unknown_tags", LLONG_MAX, &self->unknown_tags));
    PyObject *events = take_exact(batch, "events", &PyTuple_Type, "are a tuple");
    NEED(events);
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(events); i++) {
        failed = take_event(self, names, PyTuple_GET_ITEM(events, i)) < 0;
    }
    Py_DECREF(events);
    return failed ? -1 : 0;
}
