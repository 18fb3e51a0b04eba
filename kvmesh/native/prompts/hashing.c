/* Sequence hashes: each block hashed with the hash of the block before it as seed.
 *
 * What `kvmesh.core.blocks.hash_chain` does, without an object a block in between. All functions change
 * nothing but their result, and read their input only while they run.
 */
#include "base/shell.h"
#include "base/xxh3.h"
#include "prompts/prompts.h"

#define STACK_TOKENS 1024
#define TOKEN_BYTES 4
#define FETCH_AHEAD 64

static PyObject *list_of(const uint64_t *hashes, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *hash = PyLong_FromUnsignedLongLong(hashes[i]);
        set_made(&list, i, hash);
    }
    return list;
}

static uint64_t *room_for(Py_ssize_t count) {
    if ((size_t)count > PY_SSIZE_T_MAX / sizeof(uint64_t)) {
        PyErr_NoMemory();
        return NULL;
    }
    uint64_t *hashes = PyMem_Malloc(count ? (size_t)count * sizeof(uint64_t) : 1);
    if (hashes == NULL) {
        PyErr_NoMemory();
    }
    return hashes;
}

/* Read a seed as the xxhash wheel does: any integer, modulo 2^64. */
static int read_seed(PyObject *object, uint64_t *seed) {
    REFUSE(!PyLong_Check(object), PyExc_TypeError, "a seed is an int, not %.100s",
           Py_TYPE(object)->tp_name);
    *seed = PyLong_AsUnsignedLongLongMask(object);
    return 0;
}

static PyObject *native_chain(PyObject *Py_UNUSED(module), ARGUMENTS) {
    uint64_t seed;
    Py_buffer view;
    REFUSE_OR_NULL(nargs != 5, PyExc_TypeError, "chain takes 5 arguments, not %zd", nargs);
    Py_ssize_t start = PyLong_AsSsize_t(args[2]), width = PyLong_AsSsize_t(args[3]);
    Py_ssize_t count = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred() || read_seed(args[0], &seed) < 0 ||
        PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *list = NULL;
    if (start < 0 || width < 1 || count < 0 || start > view.len ||
        count > (view.len - start) / width) {
        PyErr_Format(PyExc_ValueError, "%zd blocks of %zd bytes from byte %zd on do not fit in %zd",
                     count, width, start, view.len);
    } else {
        uint64_t *hashes = room_for(count);
        if (hashes != NULL) {
            const uint8_t *at = (const uint8_t *)view.buf + start;
            for (Py_ssize_t i = 0; i < count; i++, at += width) {
                hashes[i] = seed = xxh3_64(at, (size_t)width, seed);
            }
            list = list_of(hashes, count);
            PyMem_Free(hashes);
        }
    }
    PyBuffer_Release(&view);
    return list;
}

/* Read one token; 0 when it is anything but an int below 2^32. */
static inline int read_token(PyObject *object, uint32_t *token) {
    EXPECT(PyLong_CheckExact(object));
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact((PyLongObject *)object)) {
        Py_ssize_t value = PyUnstable_Long_CompactValue((PyLongObject *)object);
        *token = (uint32_t)value;
        return value >= 0 && value <= (Py_ssize_t)UINT32_MAX;
    }
#else
    if (Py_SIZE(object) == 1) { /* one digit below 2^30: half the time of the call below */
        *token = ((PyLongObject *)object)->ob_digit[0];
        return 1;
    }
#endif
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    *token = (uint32_t)value;
    return !overflow && value >= 0 && value <= (long long)UINT32_MAX;
}

/* Write `count` tokens as u32s; 0 when one of them is none. */
static int read_tokens(PyObject *const *tokens, Py_ssize_t count, uint32_t *packed) {
    for (Py_ssize_t i = 0; i < count; i++) {
        EXPECT(read_token(tokens[i], packed + i));
    }
    return 1;
}

static int hash_tokens(PyObject *const *tokens, Py_ssize_t size, Py_ssize_t count, uint64_t seed,
                       uint32_t *packed, uint64_t *hashes) {
    for (Py_ssize_t i = 0; i < count; i++, tokens += size) {
        EXPECT(read_tokens(tokens, size, packed));
        hashes[i] = seed = xxh3_64(packed, (size_t)size * sizeof *packed, seed);
    }
    return 1;
}

static PyObject *native_chain_tokens(PyObject *Py_UNUSED(module), ARGUMENTS) {
    uint64_t seed;
    REFUSE_OR_NULL(nargs != 5, PyExc_TypeError, "chain_tokens takes 5 arguments, not %zd", nargs);
    Py_ssize_t first = PyLong_AsSsize_t(args[2]), size = PyLong_AsSsize_t(args[3]);
    Py_ssize_t count = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred() || read_seed(args[0], &seed) < 0) {
        return NULL;
    }
    if (!PyList_Check(args[1]) && !PyTuple_Check(args[1])) {
        Py_RETURN_NONE;
    }
    Py_ssize_t given = PySequence_Fast_GET_SIZE(args[1]);
    if (first < 0 || size < 1 || count < 0 || first > given || count > (given - first) / size) {
        Py_RETURN_NONE;
    }
    uint32_t stack[STACK_TOKENS];
    uint32_t *packed = stack;
    if (size > STACK_TOKENS) { /* at most as many as there are tokens: no overflow */
        packed = PyMem_Malloc((size_t)size * sizeof *packed);
        NEED_MEMORY_OR_NULL(packed);
    }
    PyObject *found = NULL;
    uint64_t *hashes = room_for(count);
    if (hashes != NULL) {
        PyObject *const *tokens = PySequence_Fast_ITEMS(args[1]);
        tokens = given ? tokens + first : tokens; /* an empty list's is NULL */
        if (hash_tokens(tokens, size, count, seed, packed, hashes)) {
            found = PyBytes_FromStringAndSize((const char *)hashes,
                                              count * (Py_ssize_t)sizeof *hashes);
        } else {
            found = Py_NewRef(Py_None);
        }
        PyMem_Free(hashes);
    }
    if (packed != stack) {
        PyMem_Free(packed);
    }
    return found;
}

/* Hash blocks of a string's code points, `kind` bytes each. */
static void hash_text(const void *text, int kind, Py_ssize_t size, Py_ssize_t count, uint64_t seed,
                      uint32_t *block, uint64_t *hashes) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (kind == PyUnicode_1BYTE_KIND) {
            const Py_UCS1 *at = (const Py_UCS1 *)text + i * size;
            for (Py_ssize_t j = 0; j < size; j++) {
                block[j] = at[j];
            }
        } else if (kind == PyUnicode_2BYTE_KIND) {
            const Py_UCS2 *at = (const Py_UCS2 *)text + i * size;
            for (Py_ssize_t j = 0; j < size; j++) {
                block[j] = at[j];
            }
        } else {
            memcpy(block, (const Py_UCS4 *)text + i * size, (size_t)size * TOKEN_BYTES);
        }
        hashes[i] = seed = xxh3_64(block, (size_t)size * TOKEN_BYTES, seed);
    }
}

static int does_not_fit(Py_ssize_t first, Py_ssize_t size, Py_ssize_t count, Py_ssize_t tokens) {
    if (first >= 0 && size > 0 && count >= 0 && first <= tokens &&
        count <= (tokens - first) / size) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%zd blocks of %zd tokens from token %zd on do not fit in %zd",
                 count, size, first, tokens);
    return 1;
}

static int text_into(PyObject *text, Py_ssize_t first, Py_ssize_t size, Py_ssize_t count,
                     uint64_t seed, uint64_t *hashes) {
    uint32_t stack[STACK_TOKENS];
    uint32_t *block = size > STACK_TOKENS ? PyMem_Malloc((size_t)size * TOKEN_BYTES) : stack;
    NEED_MEMORY(block);
    int kind = (int)PyUnicode_KIND(text);
    const char *at = (const char *)PyUnicode_DATA(text) + first * kind;
    hash_text(at, kind, size, count, seed, block, hashes);
    if (block != stack) {
        PyMem_Free(block);
    }
    return 0;
}

/* Return room for the hashes of blocks that do fit, as bytes. */
static PyObject *bytes_for(Py_ssize_t count, uint64_t **hashes) {
    PyObject *packed = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof **hashes);
    *hashes = packed == NULL ? NULL : (uint64_t *)PyBytes_AS_STRING(packed);
    return packed;
}

static PyObject *native_pack_chain(PyObject *Py_UNUSED(module), ARGUMENTS) {
    uint64_t seed, *hashes;
    PyObject *packed = NULL;
    REFUSE_OR_NULL(nargs != 5, PyExc_TypeError, "pack_chain takes 5 arguments, not %zd", nargs);
    Py_ssize_t first = PyLong_AsSsize_t(args[2]), size = PyLong_AsSsize_t(args[3]);
    Py_ssize_t count = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred() || read_seed(args[0], &seed) < 0) {
        return NULL;
    }
    if (PyUnicode_Check(args[1])) {
        if (!does_not_fit(first, size, count, PyUnicode_GET_LENGTH(args[1]))) {
            packed = bytes_for(count, &hashes);
        }
        if (packed != NULL && text_into(args[1], first, size, count, seed, hashes) < 0) {
            Py_CLEAR(packed);
        }
        return packed;
    }
    Py_buffer view;
    TRY_OR_NULL(PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE));
    if (!does_not_fit(first, size, count, view.len / TOKEN_BYTES)) {
        packed = bytes_for(count, &hashes);
    }
    if (packed != NULL) {
        size_t width = (size_t)size * TOKEN_BYTES;
        xxh3_chain(hashes, (const uint8_t *)view.buf + first * TOKEN_BYTES, count, width, seed);
    }
    PyBuffer_Release(&view);
    return packed;
}

/* Read an int that is a u64; 0 when it is anything else. Never runs Python code. */
static inline int read_hash(PyObject *object, uint64_t *hash) {
    EXPECT(PyLong_CheckExact(object));
#if PY_VERSION_HEX < 0x030C0000 && PYLONG_BITS_IN_DIGIT == 30
    const digit *digits = ((PyLongObject *)object)->ob_digit;
    Py_ssize_t count = Py_SIZE(object);
    if (count == 3 && digits[2] < 16) { /* nearly all; a fifth of the time of the call below */
        *hash = digits[0] | (uint64_t)digits[1] << 30 | (uint64_t)digits[2] << 60;
        return 1;
    }
#endif
    *hash = PyLong_AsUnsignedLongLong(object);
    if (*hash == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

static PyObject *native_pack_u64s(PyObject *Py_UNUSED(module), PyObject *hashes) {
    uint64_t *packed;
    if (!PyList_Check(hashes) && !PyTuple_Check(hashes)) {
        Py_RETURN_NONE;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(hashes);
    PyObject *found = bytes_for(count, &packed);
    PyObject *const *items = PySequence_Fast_ITEMS(hashes);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        if (i + FETCH_AHEAD < count) {
            __builtin_prefetch(items[i + FETCH_AHEAD]);
        }
        if (!read_hash(items[i], packed + i)) {
            Py_SETREF(found, Py_NewRef(Py_None));
            break;
        }
    }
    return found;
}

PyMethodDef native_hashing_methods[] = {
    METHOD_FASTCALL("chain", native_chain),
    METHOD_FASTCALL("chain_tokens", native_chain_tokens),
    METHOD_FASTCALL("pack_chain", native_pack_chain),
    METHOD_O("pack_u64s", native_pack_u64s),
    {NULL, NULL, 0, NULL},
};
