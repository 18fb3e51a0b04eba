/* Server-sent events as engines send them: one line `data: {…}`, then a blank one. */
#pragma once

#include "wire/keep.h"
#include "wire/wire.h"

#define TEXT_LENGTH(text) ((Py_ssize_t)(sizeof text - 1))

/* An event of one line: a token; one that reports usage or a tool that it calls; one that says why the
 * answer ends, and may report these, too; `[DONE]`; or one to be looked into. */
enum { EVENT_TOKEN, EVENT_USAGE, EVENT_REASON, EVENT_END, EVENT_RARE };

/* Say what an event of one line, without its end, is. */
int event_kind(const char *at, Py_ssize_t size);

/* Tell whether nothing but white space follows a last `[DONE]`. */
int ends_in_done(const char *at, Py_ssize_t size);

/* Return behind the last blank line, 0 without any. */
Py_ssize_t behind_last_event(const char *at, Py_ssize_t size);

/* Return the size in a plain chunk size line (1 to 6 hexadecimal digits, CRLF) and where it ends, 0 for
 * any other and for that of the last chunk. */
Py_ssize_t chunk_size(const char *at, const char *end, const char **content);

/* Count the tokens of one chunk if it is whole events that are not rare, else return -1; add the kinds
 * met, as bits, and set the last. */
Py_ssize_t count_plain_events(const char *at, Py_ssize_t size, int *last, unsigned *kinds);

typedef struct {
    PyObject_HEAD
    PyObject *make;  /* makes the pure twin */
    PyObject *twin;  /* it, NULL until it is needed */
    PyObject *held;  /* bytes that have not passed yet, a bytearray; NULL for none */
    PyObject *find;  /* find_usage(data, before): what an event reports, over what was reported before */
    PyObject *usage; /* what was reported but for `unread`, NULL for nothing */
    PyObject *unread; /* the data of the last event that reports usage, NULL for none */
    PyObject *kept;   /* makes what `kept` returns */
    Keeper *keeper;   /* of what passes, NULL unless it is asked for */
    Py_ssize_t tokens, due, twin_tokens, most_held;
    char done, reasoned, complete, handed_over; /* handed_over: the twin does everything */
    char hides_usage, reported; /* the client did not ask for usage; an event of a piece reports it */
} EventStream;

/* Return whole events without those that report usage alone; takes the reference. NULL: no memory. */
PyObject *without_usage(PyObject *passed);

/* The same of whole chunks of HTTP, a new reference. */
PyObject *chunks_without_usage(PyObject *chunks);

/* Return a new reference to the twin. */
PyObject *stream_twin(EventStream *self);

/* Let go of what a call of the twin returned, and take over what it has counted; -1 if it raised. */
int stream_count_twins(EventStream *self, PyObject *twin, PyObject *returned);

/* Decode the last report of usage. */
int stream_read_usage(EventStream *self);

/* Keep an event's data, which reports usage, until that is asked for. */
int stream_keep_usage(EventStream *self, const char *at, Py_ssize_t size);

/* Have the twin look into one event. */
int stream_take_rare(EventStream *self, const char *at, Py_ssize_t size);

/* Return what is held, as bytes. */
PyObject *stream_held(const EventStream *self);

/* Have the twin do everything from here on. */
int stream_hand_over(EventStream *self);

/* Have the twin take a piece; return what may pass. */
PyObject *stream_feed_twin(EventStream *self, PyObject *data);

/* Return what a method or attribute of the twin says. */
PyObject *stream_ask_twin(EventStream *self, const char *name, int call);

/* What EventStream.take says of bytes that it took. */
enum { STREAM_TAKEN = 1, STREAM_DUE = 2, STREAM_ENDED = 4 };
