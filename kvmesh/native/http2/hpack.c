/* HPACK's integers, texts, tables and header blocks. */
#include "http2/hpack.h"
#include "http2/http2.h"
#include <string.h>

#define STATIC_ENTRIES 61
#define MOST_SHIFT 28 /* of the bytes behind an integer's first: more than any number used here */

typedef struct {
    const char *name, *value;
} Field;

/* Source: RFC 7541, appendix A. */
static const Field fields_known[STATIC_ENTRIES] = {
    {":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"},
    {":path", "/index.html"}, {":scheme", "http"}, {":scheme", "https"}, {":status", "200"},
    {":status", "204"}, {":status", "206"}, {":status", "304"}, {":status", "400"},
    {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""},
    {"accept", ""}, {"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""},
    {"authorization", ""}, {"cache-control", ""}, {"content-disposition", ""},
    {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
    {"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""},
    {"date", ""}, {"etag", ""}, {"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""},
    {"if-match", ""}, {"if-modified-since", ""}, {"if-none-match", ""}, {"if-range", ""},
    {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""}, {"location", ""},
    {"max-forwards", ""}, {"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""},
    {"referer", ""}, {"refresh", ""}, {"retry-after", ""}, {"server", ""}, {"set-cookie", ""},
    {"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""},
    {"via", ""}, {"www-authenticate", ""},
};

static PyObject *known[STATIC_ENTRIES];

int hpack_ready(void) {
    huffman_ready();
    for (int i = 0; i < STATIC_ENTRIES; i++) {
        known[i] = Py_BuildValue("yy", fields_known[i].name, fields_known[i].value);
        NEED(known[i]);
    }
    return 0;
}

void hpack_init(Hpack *self) {
    memset(self, 0, sizeof *self);
    self->limit = HPACK_TABLE_BYTES;
}

void hpack_free(Hpack *self) {
    for (unsigned i = 0; i < HPACK_ENTRIES; i++) {
        Py_CLEAR(self->ring[i]);
    }
}

static size_t size_of(PyObject *field) {
    return (size_t)(PyBytes_GET_SIZE(PyTuple_GET_ITEM(field, 0)) +
                    PyBytes_GET_SIZE(PyTuple_GET_ITEM(field, 1))) + HPACK_ENTRY;
}

static void shrink(Hpack *self, size_t most) {
    while (self->bytes > most) {
        unsigned oldest = (self->newest + HPACK_ENTRIES + 1 - self->count) % HPACK_ENTRIES;
        self->bytes -= size_of(self->ring[oldest]);
        Py_CLEAR(self->ring[oldest]);
        self->count--;
    }
}

/* Put a field into the table; one that is larger than the table empties it. */
static void insert(Hpack *self, PyObject *field) {
    size_t size = size_of(field);
    if (size > self->limit) {
        shrink(self, 0);
        return;
    }
    shrink(self, self->limit - size);
    self->newest = (self->newest + 1) % HPACK_ENTRIES;
    self->ring[self->newest] = Py_NewRef(field);
    self->count++;
    self->bytes += size;
}

/* Return the field with a number, borrowed from the table; NULL for none. */
static PyObject *find(Hpack *self, uint64_t number) {
    if (number == 0 || number > STATIC_ENTRIES + self->count) {
        return NULL;
    }
    if (number <= STATIC_ENTRIES) {
        return known[number - 1];
    }
    unsigned age = (unsigned)(number - STATIC_ENTRIES - 1);
    return self->ring[(self->newest + HPACK_ENTRIES - age) % HPACK_ENTRIES];
}

/* Read an integer whose first byte has `bits` of it; 0 when it is cut off or beyond all sense. */
static int read_integer(const uint8_t **at, const uint8_t *end, int bits, uint64_t *number) {
    if (*at >= end) {
        return 0;
    }
    uint64_t most = (1u << bits) - 1;
    *number = *(*at)++ & most;
    if (*number < most) {
        return 1;
    }
    for (int shift = 0; shift <= MOST_SHIFT && *at < end; shift += 7) {
        uint8_t next = *(*at)++;
        *number += (uint64_t)(next & 127) << shift;
        if (next < 128) {
            return 1;
        }
    }
    return 0;
}

/* Return a text, a new reference; NULL without an exception set: it is none. */
static PyObject *read_text(const uint8_t **at, const uint8_t *end) {
    int packed = *at < end && **at & 0x80;
    uint64_t size;
    if (!read_integer(at, end, 7, &size) || size > (uint64_t)(end - *at)) {
        return NULL;
    }
    const uint8_t *text = *at;
    *at += size;
    return packed ? huffman_decode(text, (size_t)size)
                  : PyBytes_FromStringAndSize((const char *)text, (Py_ssize_t)size);
}

/* Return a field that stands in full, but for a name with a number; NULL as above. */
static PyObject *read_literal(Hpack *self, const uint8_t **at, const uint8_t *end, int bits) {
    uint64_t number;
    if (!read_integer(at, end, bits, &number)) {
        return NULL;
    }
    PyObject *named = number ? find(self, number) : NULL, *name = NULL;
    if (named != NULL) {
        name = Py_NewRef(PyTuple_GET_ITEM(named, 0));
    } else if (number == 0) {
        name = read_text(at, end);
    }
    PyObject *value = name == NULL ? NULL : read_text(at, end);
    PyObject *field = value == NULL ? NULL : PyTuple_Pack(2, name, value);
    XDECREF_ALL(name, value);
    return field;
}

/* Return the next field, a new reference; NULL as above. */
static PyObject *read_field(Hpack *self, const uint8_t **at, const uint8_t *end) {
    uint8_t kind = **at;
    if (kind & 0x80) {
        uint64_t number;
        PyObject *field = read_integer(at, end, 7, &number) ? find(self, number) : NULL;
        return Py_XNewRef(field);
    }
    if (kind & 0x40) {
        PyObject *field = read_literal(self, at, end, 6);
        if (field != NULL) {
            insert(self, field);
        }
        return field;
    }
    return read_literal(self, at, end, 4);
}

/* Take new limits of the table, which stand before all fields; 0 for one that may not be. */
static int read_limits(Hpack *self, const uint8_t **at, const uint8_t *end) {
    while (*at < end && (**at & 0xe0) == 0x20) {
        uint64_t limit;
        if (!read_integer(at, end, 5, &limit) || limit > HPACK_TABLE_BYTES) {
            return 0;
        }
        self->limit = (size_t)limit;
        shrink(self, self->limit);
    }
    return 1;
}

int hpack_decode(Hpack *self, const uint8_t *at, size_t size, size_t most, PyObject *fields) {
    const uint8_t *end = at + size;
    if (!read_limits(self, &at, end)) {
        return HPACK_BROKEN;
    }
    size_t total = 0;
    while (at < end) {
        PyObject *field = (*at & 0xe0) == 0x20 ? NULL : read_field(self, &at, end);
        if (field == NULL) {
            return PyErr_Occurred() ? HPACK_FAILED : HPACK_BROKEN;
        }
        total += size_of(field);
        int failed = total > most ? 0 : PyList_Append(fields, field);
        Py_DECREF(field);
        if (total > most || failed < 0) {
            return failed < 0 ? HPACK_FAILED : HPACK_TOO_LARGE;
        }
    }
    return HPACK_READ;
}
