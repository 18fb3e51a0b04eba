/* What a session hears: frames out of bytes, however those are cut. */
#include "http2/h2_session.h"

static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
#define PREFACE_BYTES ((int)sizeof preface - 1)

/* Take a frame, then see whether the peer asks for too much. */
static int take_and_judge(Session *self, const uint8_t *at, size_t size, PyObject *events) {
    Frame frame = {.kind = at[3], .flags = at[4], .stream = read_u32(at + 5) & MOST_STREAM,
                   .at = at + FRAME_HEAD, .size = size};
    TRY(take_frame(self, &frame, events));
    if (self->over) {
        return 0;
    }
    FAIL_IF(self->idle_frames > self->limits.idle_frames, ENHANCE_YOUR_CALM,
            "too many frames that move nothing");
    FAIL_IF(self->early_resets > self->limits.early_resets, ENHANCE_YOUR_CALM,
            "too many streams reset before they were answered");
    return 0;
}

/* Read a frame's length; 0 with the connection failed when it is too long, -1 with an exception. */
static int read_length(Session *self, const uint8_t *at, size_t *size, PyObject *events) {
    *size = read_u32(at) >> 8;
    FAIL_IF(*size > FRAME_BYTES, FRAME_SIZE_ERROR, "a frame larger than 16,384 bytes");
    return 0;
}

/* Complete the frame that was cut off before; return the bytes it took, -1 with an exception set. */
static Py_ssize_t complete(Session *self, const uint8_t *at, size_t size, PyObject *events) {
    Buffer *frame = &self->frame;
    size_t taken = 0, length = 0;
    if (buffer_size(frame) < FRAME_HEAD) {
        taken = FRAME_HEAD - buffer_size(frame);
        taken = taken < size ? taken : size;
        TRY(buffer_add(frame, at, taken));
        if (buffer_size(frame) < FRAME_HEAD) {
            return (Py_ssize_t)taken;
        }
    }
    TRY(read_length(self, buffer_begin(frame), &length, events));
    if (self->over) {
        return (Py_ssize_t)size;
    }
    size_t rest = FRAME_HEAD + length - buffer_size(frame);
    size_t part = rest < size - taken ? rest : size - taken;
    TRY(buffer_add(frame, at + taken, part));
    if (part == rest) {
        int failed = take_and_judge(self, buffer_begin(frame), length, events);
        buffer_take(frame, buffer_size(frame));
        TRY(failed);
    }
    return (Py_ssize_t)(taken + part);
}

static int take_frames(Session *self, const uint8_t *at, const uint8_t *end, PyObject *events) {
    while (at < end && !self->over) {
        size_t size = (size_t)(end - at), length = 0;
        if (buffer_size(&self->frame) > 0 || size < FRAME_HEAD) {
            Py_ssize_t taken = complete(self, at, size, events);
            TRY(taken);
            at += taken;
            continue;
        }
        TRY(read_length(self, at, &length, events));
        if (self->over) {
            return 0;
        }
        if (size < FRAME_HEAD + length) {
            return buffer_add(&self->frame, at, size);
        }
        TRY(take_and_judge(self, at, length, events));
        at += FRAME_HEAD + length;
    }
    return 0;
}

int receive_bytes(Session *self, const uint8_t *at, size_t size, PyObject *events) {
    const uint8_t *end = at + size;
    while (self->preface_size < PREFACE_BYTES && at < end) {
        FAIL_IF(*at++ != preface[self->preface_size++], PROTOCOL_ERROR,
                "the client does not speak HTTP/2");
    }
    self->greeted = self->preface_size == PREFACE_BYTES;
    TRY(take_frames(self, at, end, events));
    if (!self->over && self->owed * 2 >= (size_t)self->limits.connection_window) {
        TRY(put_number(self, WINDOW_UPDATE, 0, (uint32_t)self->owed));
        self->window += (int64_t)self->owed;
        self->owed = 0;
    }
    return send_waiting(self, events);
}
