/* What a session holds: bytes, streams by id, and the streams whose turn to send will come. */
#include "base/arrays.h"
#include "base/mixing.h"
#include "http2/h2_session.h"

#define FEWEST_BUCKETS 16
#define KEPT_BYTES (64 * 1024) /* of an empty buffer; more is given back */

int buffer_reserve(Buffer *self, size_t more) {
    if (self->room - self->size >= more) {
        return 0;
    }
    size_t held = buffer_size(self);
    if (self->start > 0) {
        memmove(self->at, self->at + self->start, held);
        self->start = 0;
        self->size = held;
    }
    if (self->room - held >= more) {
        return 0;
    }
    size_t room = self->room ? self->room : 256;
    while (room - held < more) {
        room *= 2;
    }
    TRY(RESIZE(self->at, room));
    self->room = room;
    return 0;
}

int buffer_add(Buffer *self, const void *from, size_t size) {
    if (size == 0) {
        return 0;
    }
    TRY(buffer_reserve(self, size));
    memcpy(self->at + self->size, from, size);
    self->size += size;
    return 0;
}

void buffer_take(Buffer *self, size_t size) {
    self->start += size;
    if (self->start == self->size) {
        self->start = self->size = 0;
        if (self->room > KEPT_BYTES) {
            buffer_free(self);
        }
    }
}

void buffer_free(Buffer *self) {
    PyMem_Free(self->at);
    *self = (Buffer){0};
}

static Stream **bucket_of(Session *self, uint32_t id) {
    return &self->buckets[(size_t)(mixed(id) >> 32) & (self->bucket_count - 1)];
}

Stream *stream_find(Session *self, uint32_t id) {
    Stream *found = self->bucket_count ? *bucket_of(self, id) : NULL;
    while (found != NULL && found->id != id) {
        found = found->same_bucket;
    }
    return found;
}

static int grow_buckets(Session *self) {
    size_t before = self->bucket_count, count = before ? 2 * before : FEWEST_BUCKETS;
    Stream **old = self->buckets, **buckets = PyMem_Calloc(count, sizeof *buckets);
    NEED_MEMORY(buckets);
    self->buckets = buckets;
    self->bucket_count = count;
    for (size_t i = 0; i < before; i++) {
        for (Stream *next, *one = old[i]; one != NULL; one = next) {
            next = one->same_bucket;
            Stream **bucket = bucket_of(self, one->id);
            one->same_bucket = *bucket;
            *bucket = one;
        }
    }
    PyMem_Free(old);
    return 0;
}

/* Return a new stream; NULL with MemoryError set. */
Stream *stream_open(Session *self, uint32_t id) {
    if ((size_t)self->open_streams >= self->bucket_count && grow_buckets(self) < 0) {
        return NULL;
    }
    Stream *stream = PyMem_Calloc(1, sizeof *stream);
    NEED_MEMORY_OR_NULL(stream);
    stream->id = id;
    stream->window = self->limits.stream_window;
    Stream **bucket = bucket_of(self, id);
    stream->same_bucket = *bucket;
    *bucket = stream;
    self->open_streams++;
    return stream;
}

static void stream_free(Stream *stream) {
    XDECREF_ALL(stream->message, stream->text);
    buffer_free(&stream->waiting);
    PyMem_Free(stream);
}

void stream_drop(Session *self, Stream *stream) {
    Stream **link = bucket_of(self, stream->id);
    while (*link != stream) {
        link = &(*link)->same_bucket;
    }
    *link = stream->same_bucket;
    ready_remove(self, stream);
    self->open_streams--;
    self->held_bytes -= stream->message != NULL ? stream->have : 0;
    self->held_bytes -= (Py_ssize_t)buffer_size(&stream->waiting);
    stream_free(stream);
}

void streams_free(Session *self) {
    for (size_t i = 0; i < self->bucket_count; i++) {
        for (Stream *next, *one = self->buckets[i]; one != NULL; one = next) {
            next = one->same_bucket;
            stream_free(one);
        }
    }
    PyMem_Free(self->buckets);
    self->buckets = NULL;
    self->bucket_count = 0;
}

void ready_add(Session *self, Stream *stream) {
    if (stream->queued) {
        return;
    }
    stream->queued = 1;
    stream->before = self->last_ready;
    stream->after = NULL;
    *(self->last_ready ? &self->last_ready->after : &self->first_ready) = stream;
    self->last_ready = stream;
}

void ready_remove(Session *self, Stream *stream) {
    if (!stream->queued) {
        return;
    }
    stream->queued = 0;
    *(stream->before ? &stream->before->after : &self->first_ready) = stream->after;
    *(stream->after ? &stream->after->before : &self->last_ready) = stream->before;
}
