/* What an event stream has its pure twin do, and what that has counted. */
#include "base/arguments.h"
#include "base/names.h"
#include "wire/sse.h"

/* Return a new reference to the twin. */
PyObject *stream_twin(EventStream *self) {
    REFUSE_OR_NULL(self->twin == NULL && self->make == NULL, PyExc_RuntimeError,
                   "a stream that was collected");
    if (self->twin == NULL) {
        PyObject *make = Py_NewRef(self->make), *twin = PyObject_CallNoArgs(make);
        Py_DECREF(make);
        NEED_OR_NULL(twin);
        Py_XSETREF(self->twin, twin);
    }
    return Py_NewRef(self->twin);
}

/* Let go of what a call of the twin returned, and take over what it has counted; -1 if it raised. */
int stream_count_twins(EventStream *self, PyObject *twin, PyObject *returned) {
    Py_ssize_t tokens = -1;
    if (returned != NULL && read_attribute(twin, interned.tokens, 'n', &tokens) < 0) {
        tokens = -1;
    }
    XDECREF_ALL(returned, twin);
    if (tokens < 0) {
        return PyErr_Occurred() ? -1 : 0;
    }
    self->tokens += tokens - self->twin_tokens;
    self->twin_tokens = tokens;
    return 0;
}

/* Decode the last report of usage. */
int stream_read_usage(EventStream *self) {
    PyObject *unread = self->unread;
    if (unread == NULL) {
        return 0;
    }
    self->unread = NULL;
    PyObject *find = Py_XNewRef(self->find);
    PyObject *before = Py_NewRef(self->usage == NULL ? Py_None : self->usage);
    PyObject *found = find == NULL ? NULL
                                   : PyObject_CallFunctionObjArgs(find, unread, before, NULL);
    if (find == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a stream that was collected");
    }
    Py_XDECREF(find);
    Py_DECREF(before);
    Py_DECREF(unread);
    NEED(found);
    Py_XSETREF(self->usage, found);
    return 0;
}

/* Keep an event's data, which reports usage, until that is asked for. */
int stream_keep_usage(EventStream *self, const char *at, Py_ssize_t size) {
    TRY(stream_read_usage(self));
    PyObject *data = PyBytes_FromStringAndSize(at + TEXT_LENGTH("data: "), size - TEXT_LENGTH("data: "));
    NEED(data);
    Py_XSETREF(self->unread, data);
    return 0;
}

/* Have the twin look into one event. */
int stream_take_rare(EventStream *self, const char *at, Py_ssize_t size) {
    PyObject *twin = stream_read_usage(self) < 0 ? NULL : stream_twin(self);
    NEED(twin);
    PyObject *before = Py_NewRef(self->usage == NULL ? Py_None : self->usage);
    PyObject *found = PyObject_CallMethod(twin, "take_event", "y#O", at, size, before);
    Py_DECREF(before);
    if (found != NULL) {
        Py_XSETREF(self->usage, Py_NewRef(found));
    }
    return stream_count_twins(self, twin, found);
}

/* Return what is held, as bytes. */
PyObject *stream_held(const EventStream *self) {
    return self->held == NULL ? PyBytes_FromStringAndSize(NULL, 0)
                              : PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self->held), PyByteArray_GET_SIZE(self->held));
}

/* Have the twin do everything from here on. */
int stream_hand_over(EventStream *self) {
    PyObject *held = stream_held(self);
    PyObject *twin = held == NULL || stream_read_usage(self) < 0 ? NULL : stream_twin(self);
    if (twin == NULL) {
        Py_XDECREF(held);
        return -1;
    }
    PyObject *before = Py_NewRef(self->usage == NULL ? Py_None : self->usage);
    PyObject *done = PyObject_CallMethod(twin, "resume", "OOOn", held,
                                         self->complete ? Py_True : Py_False, before, self->most_held);
    Py_DECREF(before);
    Py_DECREF(held);
    TRY(stream_count_twins(self, twin, done));
    Py_CLEAR(self->held);
    self->handed_over = 1;
    return 0;
}

PyObject *stream_feed_twin(EventStream *self, PyObject *data) {
    PyObject *twin = stream_twin(self);
    PyObject *passed = twin == NULL ? NULL : PyObject_CallMethod(twin, "feed", "O", data);
    if (twin != NULL && stream_count_twins(self, twin, Py_XNewRef(passed)) < 0) {
        Py_CLEAR(passed);
    }
    return passed;
}

/* Return what a method or attribute of the twin says. */
PyObject *stream_ask_twin(EventStream *self, const char *name, int call) {
    PyObject *twin = stream_twin(self), *found = NULL;
    if (twin != NULL) {
        found = call ? PyObject_CallMethod(twin, name, NULL) : PyObject_GetAttrString(twin, name);
        Py_DECREF(twin);
    }
    return found;
}
